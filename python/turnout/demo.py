"""A fleet to look at: model engines, and callers that play a mixed load on them through a running `turnout serve`.

`turnout serve --demo` uses it. The simulated comparison of policies is another thing: `turnout simulate`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import aiohttp
import numpy as np
from numpy.typing import NDArray

from turnout.engine import EngineConfig, EngineServer
from turnout.errors import InvalidArgument
from turnout.simulate.mixture import SYSTEM_TOKENS, TARGETS, WORKLOADS, mixture

if TYPE_CHECKING:
    from types import TracebackType

    from turnout.simulate.scenario import Scenario

MOST_ENGINES: Final = 64
KV_TOKENS: Final = 16_384
SPEED: Final = 20.0
"""Seconds of the model engines per second of the clock."""
SCALE: Final = 16.0
"""Sessions are so much shorter than those of the mixture."""
CALLERS_PER_ENGINE: Final = 8
"""Enough that some turns are held."""
SESSIONS: Final = 400
WAIT_S: Final = 20.0
PAUSE_S: Final = 0.5
OK: Final = 200
VOCABULARY: Final = 256


Tokens = NDArray[np.uint32]


class _Turn(NamedTuple):
    """One turn of a session that is played."""

    prompt_tokens: int
    output_tokens: int
    gap_s: float


class Demo:
    """Engines in this event loop, and a load. Use it as an asynchronous context; leaving it ends both.

    Args:
        engines: How many engines, 1..64.

    Attributes:
        urls: Where the engines answer, once entered.

    Raises:
        InvalidArgument: The number is out of range.

    Example:
        >>> import asyncio
        >>> async def look() -> int:
        ...     async with Demo(2) as demo:
        ...         return len(demo.urls)
        >>> asyncio.run(look())
        2
    """

    workloads: Final = tuple(f"{name}={target}" for name, target in zip(WORKLOADS, TARGETS, strict=True))
    """The classes of sessions that are played, as `ServeConfig.workloads` has them."""

    def __init__(self, engines: int = 4) -> None:
        """Check; nothing runs yet."""
        if not 1 <= engines <= MOST_ENGINES:
            accepted = f"1 to {MOST_ENGINES} engines"
            raise InvalidArgument(f"demo: got {engines}, accepted is {accepted}", "demo", str(engines), accepted)
        self.urls: tuple[str, ...] = ()
        self._servers = [
            EngineServer(EngineConfig(kv_tokens=KV_TOKENS, speed=SPEED, seed=seed)) for seed in range(engines)
        ]
        self._callers: list[asyncio.Task[None]] = []
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Start the engines."""
        try:
            for server in self._servers:
                await server.start()
        except BaseException:
            await self._stop_engines()
            raise
        self.urls = tuple(server.url for server in self._servers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End load and engines."""
        await self.rest()
        await self._stop_engines()

    def drive(self, url: str, token: str | None = None) -> None:
        """Begin to play the load.

        Args:
            url: Address of the server.
            token: Its token, where it has one.
        """
        head = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        scenario = mixture(SESSIONS, scale=SCALE)
        turn_of = itertools.count()
        sessions = itertools.cycle(range(scenario.sessions))
        for _ in range(CALLERS_PER_ENGINE * len(self._servers)):
            caller = _Caller(self._http, f"{url}/turnout/v1/", head, scenario)
            self._callers.append(asyncio.create_task(caller.play(sessions, turn_of)))

    async def rest(self) -> None:
        """End the load; the engines go on."""
        callers, self._callers = self._callers, []
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def _stop_engines(self) -> None:
        await asyncio.gather(*(server.stop() for server in self._servers))


class _Caller:
    """Plays one session after the other, as a rollout worker would."""

    def __init__(self, http: aiohttp.ClientSession, api: str, head: dict[str, str], scenario: Scenario) -> None:
        self._http = http
        self._api = api
        self._head = head
        self._scenario = scenario

    async def play(self, sessions: itertools.cycle[int], numbers: itertools.count[int]) -> None:
        """Play until cancelled. A server that is away or refuses costs a pause and the session."""
        while True:
            number = next(numbers)
            try:
                await self._session(next(sessions), f"demo-{number}", number)
            except (aiohttp.ClientError, TimeoutError, ConnectionError, LookupError):
                await asyncio.sleep(PAUSE_S)

    async def _session(self, at: int, name: str, seed: int) -> None:
        scenario, random = self._scenario, np.random.default_rng(seed)
        workload = scenario.workloads[int(scenario.session_workload[at])]
        # Agents share a system prompt; what else a prompt holds is its session's own.
        shared = int(SYSTEM_TOKENS / SCALE) if workload == "agent" else 0
        history = np.arange(shared, dtype=np.uint32) % VOCABULARY
        for number, turn in enumerate(_turns(scenario, at)):
            await asyncio.sleep(turn.gap_s / SPEED)
            new = max(turn.prompt_tokens - len(history), 1)
            prompt = np.concatenate([history, random.integers(0, VOCABULARY, new, dtype=np.uint32)])
            history = await self._turn(f"{name}-{number}", name, workload, prompt, turn.output_tokens)
        await self._ask("end_session", {"session": name})

    async def _turn(self, turn: str, session: str, workload: str, prompt: Tokens, most: int) -> Tokens:
        """One turn, from the decision to its end; answers the history after it."""
        asked = {"turn": turn, "session": session, "workload": workload, "max_new_tokens": most, "wait_s": WAIT_S}
        asked["prompt"] = base64.b64encode(prompt.astype("<u4").tobytes()).decode()
        decision = {"status": "held"}
        while decision["status"] == "held":
            decision = await self._ask("submit", asked)
        if decision["status"] != "placed":
            raise LookupError(decision["reason"])
        try:
            output, cached_tokens = await self._generate(decision["replica"], prompt, most)
        except BaseException:
            # Also when it is cancelled: the turn must not stay open.
            with contextlib.suppress(aiohttp.ClientError, LookupError):
                await asyncio.shield(self._ask("abort", {"turn": turn}))
            raise
        await self._ask("complete", {"turn": turn, "output": output, "cached_tokens": cached_tokens})
        return np.concatenate([prompt, np.array(output, dtype=np.uint32)])

    async def _generate(self, replica: str, prompt: Tokens, most: int) -> tuple[list[int], int]:
        """Ask an engine; answers the output's ids, and how many tokens of the prompt it had cached."""
        body = {"prompt": prompt.tolist(), "max_tokens": most, "return_token_ids": True}
        async with self._http.post(f"http://{replica}/v1/completions", json=body) as answer:
            if answer.status != OK:
                raise LookupError(await answer.text())
            said = await answer.json()
        return said["choices"][0]["token_ids"], said["usage"]["prompt_tokens_details"]["cached_tokens"]

    async def _ask(self, name: str, message: dict[str, Any]) -> dict[str, Any]:
        async with self._http.post(self._api + name, json=message, headers=self._head) as answer:
            body: dict[str, Any] = await answer.json()
            if answer.status != OK:
                raise LookupError(str(body))
            return body


def _turns(scenario: Scenario, session: int) -> list[_Turn]:
    first, end = scenario.session_first_turn[session : session + 2].tolist()
    columns = (scenario.turn_prompt_tokens, scenario.turn_output_tokens, scenario.turn_gap_s)
    return [_Turn(*row) for row in zip(*(column[first:end].tolist() for column in columns), strict=True)]
