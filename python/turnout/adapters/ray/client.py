"""The caller's side: hashes prompts here, sends fingerprints, and puts what is said in one moment into one call."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from ray.exceptions import RayError, RayTaskError

from turnout._core import Prompt
from turnout.adapters.shared.messages import Placement, pack_tokens
from turnout.errors import RouterClosed, TurnNotPlaced, TurnoutError

if TYPE_CHECKING:
    from types import TracebackType

    from turnout.adapters.shared.messages import Answer, Hello, Operation
    from turnout.aio import SubmitArguments

BEAT_S: Final = 10.0


class TurnoutClient:
    """Asks a `TurnoutActor`, from one event loop. Used with `async with`.

    Sessions belong to the client: it beats, and the actor ends them after 60 s of silence.

    Args:
        actor: Handle of the actor.
        owner: Its name as the owner of sessions; drawn by default.
        beat_s: Time between beats, s.

    Raises:
        RouterClosed: By every method, when the actor is dead or cannot be reached.
    """

    def __init__(self, actor: Any, *, owner: str | None = None, beat_s: float = BEAT_S) -> None:  # noqa: ANN401 - a handle
        """Keep the handle; `async with` begins."""
        self._actor = actor
        self.owner = f"client-{secrets.token_hex(8)}" if owner is None else owner
        self._beat_s = beat_s
        self._hello: Hello | None = None
        self._greeting: asyncio.Task[Hello] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._gathered: list[tuple[Operation, asyncio.Future[Answer]]] = []
        self._calling: asyncio.Task[None] | None = None
        self._open: dict[str, int] = {}

    async def __aenter__(self) -> Self:
        """Ask for the key and begin to beat."""
        await self.hello()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        await self.close()

    async def hello(self) -> Hello:
        """Key and block size of the router, asked once."""
        if self._hello is None:
            if self._greeting is None:
                self._greeting = asyncio.create_task(self._greet())
            try:
                self._hello = await asyncio.shield(self._greeting)
            finally:
                self._greeting = None
        return self._hello

    async def place(self, prompt: Any = None, **arguments: Unpack[SubmitArguments]) -> Placement:  # noqa: ANN401 - tokens
        """Submit a turn and wait while it is held. A wait that is cancelled gives the turn up.

        Args:
            prompt: The prompt: token ids, or a `turnout.Prompt`.
            **arguments: As for `turnout.Router.submit`; `turn` is drawn and `owner` is this client by default.

        Returns:
            The decision: placed, rejected, expired or lost.

        Raises:
            RouterClosed: The actor is dead or cannot be reached.
            TurnEnded: Somebody else ended the turn meanwhile.
            TurnoutError: As for `turnout.Router.submit`.
        """
        packed = await self._packed(prompt, arguments)
        turn: str = packed.setdefault("turn", secrets.token_hex(12))
        packed.setdefault("owner", self.owner)
        try:
            placement = await self._do("submit", packed)
            while placement.status == "held":
                told = await self._ask(self._actor.wait.remote(turn))
                # Nothing known: the actor started anew without it, or forgot it. The same submit joins or begins again.
                placement = await self._do("submit", packed) if told is None else told
        except asyncio.CancelledError:
            self._post("abort", {"turn": turn})
            raise
        if placement.placed:
            self._open[turn] = 0
        answer: Placement = placement
        return answer

    def turn(self, prompt: Any = None, **arguments: Unpack[SubmitArguments]) -> ActorTurn:  # noqa: ANN401 - tokens
        """A turn as a context: entered when it is placed, aborted when it is left without `complete`.

        Args:
            prompt: As for `place`.
            **arguments: As for `place`.

        Returns:
            The turn, for `async with`.
        """
        return ActorTurn(self, prompt, arguments)

    async def choose(self, prompt: Any = None, **arguments: Any) -> Placement:  # noqa: ANN401 - as Router.choose
        """Choose a replica for a turn that is not tracked, see `turnout.Router.choose`."""
        answer: Placement = await self._do("choose", await self._packed(prompt, arguments))
        return answer

    def complete(self, turn: str, output: Any = None, **arguments: Any) -> asyncio.Future[str]:  # noqa: ANN401 - as Router
        """End a turn, see `turnout.Router.complete`. Nobody has to wait for the answer.

        Args:
            turn: The turn.
            output: Ids of the generated tokens.
            **arguments: As for `turnout.Router.complete`.

        Returns:
            The status of the outcome, to be awaited or not.
        """
        return self._end("complete", turn, output, arguments)

    def abort(self, turn: str, output: Any = None, **arguments: Any) -> asyncio.Future[str]:  # noqa: ANN401 - as Router
        """End a turn unfinished, see `complete` and `turnout.Router.abort`."""
        return self._end("abort", turn, output, arguments)

    def progress(self, turn: str, output_tokens: int) -> asyncio.Future[str]:
        """Report output so far, see `turnout.Router.progress`."""
        if turn in self._open:
            self._open[turn] = output_tokens
        return self._post("progress", {"turn": turn, "output_tokens": output_tokens})

    def end_session(self, session: str, *, completed: bool = True) -> asyncio.Future[str]:
        """End a session, see `turnout.Router.end_session`."""
        return self._post("end_session", {"session": session, "completed": completed})

    def event(self, name: str, /, **arguments: Any) -> asyncio.Future[str]:  # noqa: ANN401 - as Router
        """Any other event of the router by its name, as `event("weights_updated", version=3)`.

        Args:
            name: A method of `turnout.Router` that is an event.
            **arguments: Its keyword arguments.

        Returns:
            The status of the outcome, to be awaited or not.
        """
        return self._post(name, arguments)

    async def close(self) -> None:
        """Abort what is open, send what is gathered, and stop beating. Sessions stay until they are ended or silent."""
        for turn in list(self._open):
            self.abort(turn)
        while self._gathered or self._calling is not None:
            self._flush()
            await asyncio.gather(*[task for task in [self._calling] if task is not None])
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
            self._beating = None

    async def _greet(self) -> Hello:
        hello: Hello = await self._ask(self._actor.hello.remote())
        self._beating = asyncio.create_task(self._beat(hello.instance))
        return hello

    async def _beat(self, instance: str) -> None:
        """Beat; an actor that started anew hears of every open turn, else it would give them up."""
        while True:
            await asyncio.sleep(self._beat_s)
            try:
                heard = await self._ask(self._actor.beat.remote(self.owner))
            except RouterClosed:
                continue
            if heard != instance:
                instance = heard
                for turn, output_tokens in list(self._open.items()):
                    self.progress(turn, output_tokens)

    async def _packed(self, prompt: Any, arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - tokens, typed dicts
        hello = await self.hello()
        packed: dict[str, Any] = dict(arguments)
        if prompt is not None:
            if not isinstance(prompt, Prompt):
                prompt = Prompt(prompt, hash_key=hello.hash_key, block_tokens=hello.block_tokens)
            packed["prompt"] = prompt.pack()
        if packed.get("append") is not None:
            packed["append"] = pack_tokens(packed["append"], "append")
        return packed

    def _end(self, name: str, turn: str, output: Any, arguments: dict[str, Any]) -> asyncio.Future[str]:  # noqa: ANN401 - tokens
        packed = {**arguments, "turn": turn}
        if output is not None:
            packed["output"] = pack_tokens(output, "output")
        self._open.pop(turn, None)
        return self._post(name, packed)

    async def _do(self, name: str, arguments: dict[str, Any]) -> Answer:
        return await self._post(name, arguments)

    def _post(self, name: str, arguments: dict[str, Any]) -> asyncio.Future[Answer]:
        """Put an operation into the next call."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        future.add_done_callback(_hear_quietly)
        if not self._gathered:
            loop.call_soon(self._flush)
        self._gathered.append(((name, arguments), future))
        return future

    def _flush(self) -> None:
        """One call at a time, which keeps the order; what is said meanwhile gathers for the next one."""
        if self._gathered and self._calling is None:
            gathered, self._gathered = self._gathered, []
            self._calling = asyncio.get_running_loop().create_task(self._call(gathered))
            self._calling.add_done_callback(self._called)

    def _called(self, task: asyncio.Task[None]) -> None:
        self._calling = None
        if not task.get_loop().is_closed():
            self._flush()

    async def _call(self, gathered: list[tuple[Operation, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._ask(self._actor.call.remote([operation for operation, _ in gathered]))
        except Exception as error:  # noqa: BLE001 - whatever it is, everybody who waits is told
            answers = [error] * len(gathered)
        for (_, future), answer in zip(gathered, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    async def _ask(self, call: Any) -> Answer:  # noqa: ANN401 - a Ray reference
        try:
            return await call
        except RayTaskError as error:
            if isinstance(error.cause, TurnoutError):
                raise error.cause from None  # what the router raised, without Ray's wrapping
            raise
        except RayError as error:
            raise RouterClosed(f"router: the actor cannot be reached: {type(error).__name__}") from error


class ActorTurn:
    """A turn, made by `TurnoutClient.turn` and used with `async with`: aborted when it is left without `complete`."""

    def __init__(self, client: TurnoutClient, prompt: Any, arguments: SubmitArguments) -> None:  # noqa: ANN401 - tokens
        """Keep what is submitted later."""
        self._client = client
        self._prompt = prompt
        self._arguments = arguments
        self._placement: Placement | None = None
        self._ended = False

    @property
    def placement(self) -> Placement:
        """The decision."""
        if self._placement is None:
            raise TurnNotPlaced("turn: it was not entered; use `async with client.turn(...)`")
        return self._placement

    @property
    def replica(self) -> str:
        """The replica to send it to."""
        return self.placement.replica or ""

    async def __aenter__(self) -> Self:
        """Wait until it is placed."""
        placement = await self._client.place(self._prompt, **self._arguments)
        if not placement.placed:
            message = f"turn: {placement.turn!r} is {placement.status}, {placement.reason}"
            raise TurnNotPlaced(message, "turn", placement.turn, "a turn that can be placed")
        self._placement = placement
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Abort it unless it was ended."""
        if not self._ended:
            self._client.abort(self.placement.turn)

    def progress(self, output_tokens: int) -> None:
        """Report output so far, see `turnout.Router.progress`."""
        self._client.progress(self.placement.turn, output_tokens)

    def complete(self, output: Any = None, **arguments: Any) -> None:  # noqa: ANN401 - as Router.complete
        """End it: prompt and output become the session's history, see `turnout.Router.complete`."""
        self._ended = True
        self._client.complete(self.placement.turn, output, **arguments)


def _hear_quietly(future: asyncio.Future[Answer]) -> None:
    """Nobody has to wait for the answer to an event, nor for its error."""
    if not future.cancelled():
        future.exception()
