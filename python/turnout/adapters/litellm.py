"""LiteLLM: a callback that chooses the deployment and is told what became of the call (docs/embedding/litellm.md).

```python
litellm.callbacks = [TurnoutFilter(router)]     # deployments' ids are the replicas' names
```
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING, Any, Final, Protocol

from turnout import aio
from turnout.errors import MissingExtra, TurnoutError
from turnout.prompts import text_units
from turnout.router import Router

try:
    from litellm.integrations.custom_logger import CustomLogger
except ImportError as error:
    raise MissingExtra("the filter needs litellm: pip install 'turnout[litellm]'") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_LOG = logging.getLogger(__name__)

MARK: Final = "turnout_turn"
"""Key in a call's metadata under which its turn goes through LiteLLM."""


class Turns(Protocol):
    """Who decides: a `turnout.aio.AsyncRouter`, or a `turnout.adapters.ray.TurnoutClient` of a router elsewhere."""

    async def place(self, prompt: Any = None, /, **arguments: Any) -> Any:  # noqa: ANN401 - see `AsyncRouter.place`
        """Place a turn, and wait while it is held."""

    def complete(self, turn: str, /, **arguments: Any) -> Any:  # noqa: ANN401 - see `AsyncRouter.complete`
        """End it."""

    def abort(self, turn: str, /, **arguments: Any) -> Any:  # noqa: ANN401 - see `AsyncRouter.abort`
        """End it unfinished."""

    def end_session(self, session: str, /) -> Any:  # noqa: ANN401 - see `AsyncRouter.end_session`
        """End its session."""


def describe(request: Mapping[str, Any]) -> dict[str, Any]:
    """What a call's metadata says of its turn; the default of `TurnoutFilter`.

    Args:
        request: The call's keyword arguments, with `metadata`.

    Returns:
        Arguments of `turnout.Router.submit`: `session` from `session_id`, and `workload`.

    Example:
        >>> describe({"metadata": {"session_id": "s", "workload": "chat"}})
        {'session': 's', 'workload': 'chat'}
    """
    metadata = request.get("metadata") or {}
    session = request.get("litellm_session_id") or metadata.get("session_id")
    said = {"session": session, "workload": metadata.get("workload")}
    return {name: value for name, value in said.items() if value is not None}


class TurnoutFilter(CustomLogger):  # type: ignore[misc]  # LiteLLM is not installed where types are checked
    """Narrows the deployments of a model group to the one that the router chose.

    Fails open: where the router raises, refuses, or does not answer within `deadline_s`, LiteLLM's own choice stands.

    Args:
        turns: A `turnout.Router`, whose clock then runs in the loop of the first call; or what `Turns` says.
        deadline_s: Longest wait of a held call, s; below LiteLLM's time-out.
        lifetime_s: Time after which a call of which nothing was heard ends, s: LiteLLM does not say when a stream
            is broken off. Its own time-out is a good value.
        describe: What a call's keyword arguments say of its turn.
    """

    def __init__(
        self,
        turns: Router | Turns,
        *,
        deadline_s: float = 30.0,
        lifetime_s: float = 600.0,
        describe: Callable[[Mapping[str, Any]], dict[str, Any]] = describe,
    ) -> None:
        """Keep the router."""
        super().__init__()
        self._turns: Any = aio.AsyncRouter(turns) if isinstance(turns, Router) else turns
        self._deadline_s = deadline_s
        self._lifetime_s = lifetime_s
        self._describe = describe
        self._open: dict[str, asyncio.TimerHandle] = {}

    async def async_filter_deployments(
        self,
        model: str,
        healthy_deployments: list[dict[str, Any]],
        messages: Sequence[Mapping[str, Any]] | None = None,
        request_kwargs: dict[str, Any] | None = None,
        parent_otel_span: object = None,
        **later: object,
    ) -> list[dict[str, Any]]:
        """Choose one of the deployments; called by LiteLLM for each attempt.

        Args:
            model: The model group.
            healthy_deployments: Those that LiteLLM would use.
            messages: The prompt.
            request_kwargs: The call's keyword arguments; the turn's id is put into its metadata.
            parent_otel_span: Not used.
            **later: What later versions add.

        Returns:
            The chosen one alone, or all of them.
        """
        del parent_otel_span, later
        if request_kwargs is None or not healthy_deployments:
            return healthy_deployments
        metadata = request_kwargs.setdefault("metadata", {})
        turn = secrets.token_hex(12)
        try:
            if isinstance(self._turns, aio.AsyncRouter):
                self._turns.start()
            decision = await self._turns.place(
                text_units(messages or [{"content": str(request_kwargs.get("input"))}]),
                turn=turn,
                candidates=_untried(healthy_deployments, metadata),
                namespace=f"text:{model}",
                max_new_tokens=request_kwargs.get("max_completion_tokens") or request_kwargs.get("max_tokens"),
                deadline_s=self._deadline_s,
                **self._describe(request_kwargs),
            )
        except (TurnoutError, TypeError):
            _LOG.exception("a call to %s is left to LiteLLM", model)
            return healthy_deployments
        if not decision.placed:
            _LOG.warning("a call to %s is left to LiteLLM: %s, %s", model, decision.status, decision.reason)
            return healthy_deployments
        metadata[MARK] = turn
        self._watch(turn)
        return [each for each in healthy_deployments if _name(each) == decision.replica]

    async def async_log_success_event(
        self,
        kwargs: dict[str, Any],
        response_obj: Any,  # noqa: ANN401 - of many kinds
        start_time: object,
        end_time: object,
    ) -> None:
        """A call was answered, or its stream has ended.

        Args:
            kwargs: LiteLLM's record of the call.
            response_obj: The answer, with its usage.
            start_time: Not used.
            end_time: Not used.
        """
        del start_time, end_time
        turn = self._ended(kwargs)
        if turn is not None:
            usage = getattr(response_obj, "usage", None)
            details = getattr(usage, "prompt_tokens_details", None)
            told = {
                "prompt_tokens": getattr(usage, "prompt_tokens", None),
                "output_tokens": getattr(usage, "completion_tokens", None),
                "cached_tokens": getattr(details, "cached_tokens", None),
            }
            self._turns.complete(turn, **told)

    async def async_log_failure_event(
        self, kwargs: dict[str, Any], response_obj: object, start_time: object, end_time: object
    ) -> None:
        """An attempt failed; LiteLLM may make another, which is another turn.

        Args:
            kwargs: LiteLLM's record of the call.
            response_obj: Not used.
            start_time: Not used.
            end_time: Not used.
        """
        del response_obj, start_time, end_time
        turn = self._ended(kwargs)
        if turn is not None:
            self._turns.abort(turn)

    def end_session(self, session: str) -> None:
        """A conversation is over; LiteLLM does not know when. Else it ends when it has been idle for long.

        Args:
            session: Its id.
        """
        self._turns.end_session(session)

    async def close(self) -> None:
        """Give up what is open, and stop the clock of a router that was given as such."""
        for turn in list(self._open):
            self._given_up(turn)
        if isinstance(self._turns, aio.AsyncRouter):
            await self._turns.close()

    def _ended(self, kwargs: Mapping[str, Any]) -> str | None:
        metadata = (kwargs.get("litellm_params") or {}).get("metadata") or {}
        turn: str | None = metadata.get(MARK)
        timer = None if turn is None else self._open.pop(turn, None)
        if timer is None:
            return None
        timer.cancel()
        return turn

    def _watch(self, turn: str) -> None:
        """See that a turn ends though LiteLLM says nothing: with the task that made the call, at last by time."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        self._open[turn] = loop.call_later(self._lifetime_s, self._given_up, turn)

        def ended(task: asyncio.Task[Any]) -> None:
            if task.cancelled():
                self._given_up(turn)

        if task is not None:
            task.add_done_callback(ended)

    def _given_up(self, turn: str) -> None:
        timer = self._open.pop(turn, None)
        if timer is not None:
            timer.cancel()
            self._turns.abort(turn)


def _name(deployment: Mapping[str, Any]) -> str:
    return str((deployment.get("model_info") or {}).get("id"))


def _untried(deployments: Sequence[Mapping[str, Any]], metadata: Mapping[str, Any]) -> list[str]:
    """Names of the deployments that this call has not failed on; all of them when it has failed everywhere."""
    names = [_name(each) for each in deployments]
    failed = {each.get("deployment_id") for each in metadata.get("previous_models") or () if isinstance(each, dict)}
    return [name for name in names if name not in failed] or names
