"""verl's balancer protocol over the router: a plain asyncio class; `balancer.TurnoutBalancer` makes an actor of it."""

from __future__ import annotations

import asyncio
import logging
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from turnout.adapters.shared.host import RouterHost
from turnout.adapters.verl.config import VerlConfig
from turnout.adapters.verl.running import RunningTurns
from turnout.errors import TurnoutError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from turnout import Decision
    from turnout.adapters.shared.messages import Answer

_LOG = logging.getLogger(__name__)

FEEDBACK: Final = "turnout"
"""Name among the release fields by which the plug-in knows this balancer; verl's own client passes it over."""

NO_SERVERS: Final = "No available servers in load balancer"
"""verl's words: its fully asynchronous client waits for servers when it reads them."""


class VerlHost(RouterHost):
    """The router behind verl's `RequestLoadBalancer` protocol.

    A turn that the router refuses, or that waits past its deadline, is routed without being tracked: a trainer that
    went on before goes on.

    Args:
        servers: Actor handles by `ip:port`; may be empty.
        loaded: The YAML file, see `VerlConfig`.

    Raises:
        InvalidArgument: A setting cannot be used.
    """

    def __init__(self, servers: Mapping[str, Any], loaded: Mapping[str, Any]) -> None:
        """Make or restore the router."""
        self.config = config = VerlConfig.of(loaded)
        goes_on = config.journal is not None and Path(config.journal).exists()
        super().__init__(
            () if goes_on else [config.replica(server_id) for server_id in servers],
            config.workload_list(),
            policy=config.policy,
            journal=config.journal,
            reattach_s=config.reattach_s,
            **({} if goes_on else {"session_ttl_s": config.session_idle_s, "block_tokens": config.block_tokens}),
        )
        # What was removed before a restart stays away; what was added before it has no handle until it is added again.
        replicas = self._routed.router.replicas
        self._handles = {server_id: handle for server_id, handle in servers.items() if server_id in replicas}
        for name in replicas:
            if name not in self._handles:
                self._routed.lose_replica(name)
        self._running = RunningTurns()
        self._pings: dict[str, asyncio.Task[bool]] = {}
        self._drains = False
        self._version = 0
        self._steps: dict[str, int] = {}

    def require_acquire_fields(self) -> list[str]:
        """What verl's client sends along."""
        prompt = ["prompt_ids"] if self.config.tokens == "prompt" else []
        return [*prompt, "sampling_params", "priority"]

    def require_release_fields(self) -> list[str]:
        """What verl's client names at the end."""
        return ["request_id", FEEDBACK] if self.config.feedback else ["request_id"]

    async def acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:  # noqa: ANN401 - verl's fields
        """Place a turn; the call waits while it is held.

        Args:
            request_id: The trajectory.
            **extra: The fields that were asked for.

        Returns:
            (server id, its handle).

        Raises:
            RuntimeError: There are no servers, in verl's words.
        """
        self._start()
        while True:
            server_id, turn = await self._place(request_id, extra)
            ping = self._pings.get(server_id)
            if ping is not None:
                await asyncio.shield(ping)
            handle = self._handles.get(server_id)
            if handle is not None:
                self._running.add(server_id, request_id, turn)
                return server_id, handle
            self._routed.abort(turn)  # its server has gone meanwhile

    async def release_server(self, server_id: str, request_id: str | None = None, **extra: Any) -> None:  # noqa: ANN401 - verl's fields
        """End the oldest turn of this request on this server. What it generated is not known here.

        Args:
            server_id: The server.
            request_id: The trajectory; None = the oldest turn of the server.
            **extra: Fields of later versions.
        """
        del extra
        self._start()
        entry = self._running.pop(server_id, request_id)
        # Before its room is given to another turn: a call that ended may have ended because its server is dead.
        self._look_at(server_id)
        if entry is None or not entry.turn:
            return
        self._routed.complete(entry.turn)
        if self.config.turns == "one":
            self._routed.end_session(entry.request_id)

    async def add_servers(self, servers: Mapping[str, Any]) -> None:
        """Add servers, or open them again.

        Args:
            servers: Actor handles by `ip:port`.
        """
        self._start()
        for server_id, handle in servers.items():
            self._handles[server_id] = handle
            known = server_id in self._routed.router.replicas
            (self._routed.set_replica if known else self._routed.add_replica)(self.config.replica(server_id))

    async def remove_servers(self, server_ids: list[str]) -> None:
        """Let servers run dry and go: their turns go on until they are released, nothing new is placed there.

        Args:
            server_ids: Their ids.
        """
        self._start()
        for server_id in server_ids:
            if self._handles.pop(server_id, None) is not None:
                self._routed.remove_replica(server_id)

    async def get_all_servers(self) -> list[str]:
        """Ids of the servers."""
        return list(self._handles)

    async def get_inflight_count(self, server_id: str) -> int:
        """Requests that run on a server."""
        return self._running.counts()[server_id]

    async def get_total_inflight(self) -> int:
        """Requests that run on the servers; while those from before `clear_sticky_cache` drain, these alone.

        verl polls this until it is 0, to see aborted requests go. Turns that waited here and take their places would
        keep it above 0 for as long as anybody waits.
        """
        if self._drains:
            left = self._running.before_last_clear()
            self._drains = left > 0
            return left
        counts = self._running.counts()
        return sum(counts[server_id] for server_id in self._handles)

    async def get_status(self) -> dict[str, Any]:
        """Servers with their requests, and the router's counters under `turnout`."""
        counts = self._running.counts()
        servers = {server_id: counts[server_id] for server_id in self._handles}
        return {
            "servers": servers,
            "total_inflight": sum(servers.values()),
            "active_servers": len(servers),
            "registered_handles": list(self._handles),
            "turnout": await self.status(),
        }

    async def clear_sticky_cache(self) -> dict[str, Any]:
        """Forget what the servers hold: requests go where there is room, as after new weights.

        Returns:
            `cleared_entries`, sessions that were known; `server_loads`, requests by server.
        """
        self._start()
        self._running.era += 1
        self._drains = True
        self._flush(None)
        counts = self._running.counts()
        return {
            "cleared_entries": self._routed.router.stats()["live_sessions"],
            "server_loads": {server_id: counts[server_id] for server_id in self._handles},
        }

    async def introduce(self) -> tuple[VerlConfig, dict[str, Any]]:
        """Settings and handles, for the plug-in's clients."""
        self._start()
        return self.config, dict(self._handles)

    def server_died(self, server: str) -> str:
        """A server's actor is dead: its turns are lost, what waits goes elsewhere.

        Args:
            server: Its id.

        Returns:
            The status of the outcome.
        """
        if self._handles.pop(server, None) is None:
            return "duplicate"
        _LOG.warning("server %s is dead", server)
        self._steps.pop(server, None)
        return self._routed.lose_replica(server).status

    def weights_seen(self, server: str, step: int) -> str:
        """A server answered with the weights of a step: where they are newer than the last ones, its cache was emptied.

        Args:
            server: Its id.
            step: verl's global step.

        Returns:
            The status of the outcome.
        """
        before = self._steps.get(server)
        if server not in self._handles or (before is not None and step <= before):
            return "duplicate"
        self._steps[server] = step
        # The first report is where counting begins, no change.
        return "duplicate" if before is None else self._flush(server)

    async def _place(self, request_id: str, extra: Mapping[str, Any]) -> tuple[str, str]:
        """(server id, turn) for a request; no turn where the router did not place it."""
        if not self._handles:
            raise RuntimeError(NO_SERVERS)
        turn, prompt = f"{request_id}/{secrets.token_hex(6)}", extra.get("prompt_ids")
        try:
            arguments = self.config.arguments(request_id, extra)
            if prompt is None:
                arguments["prompt_tokens"] = self.config.prompt_tokens
            decision = await self._routed.place(prompt, turn=turn, **arguments)
            if decision.placed and decision.replica in self._handles:
                return decision.replica, turn
            _LOG.warning("%s is %s (%s): routed untracked", request_id, decision.status, decision.reason)
        except (TurnoutError, TypeError):
            _LOG.exception("%s is routed untracked", request_id)
        self._routed.abort(turn)
        if self.config.turns == "one":
            self._routed.end_session(request_id, completed=False)
        return self._least_loaded(), ""

    def _look_at(self, server_id: str) -> None:
        """See whether a server lives; requests that are placed there meanwhile wait for the answer."""
        if server_id in self._handles and server_id not in self._pings:
            task = asyncio.get_running_loop().create_task(self._lives_not(server_id))
            self._pings[server_id] = task
            task.add_done_callback(lambda _: self._pings.pop(server_id, None))

    async def _lives_not(self, server_id: str) -> bool:
        dead = await self._is_dead(self._handles[server_id])
        if dead:
            self.server_died(server_id)
        return dead

    def _flush(self, server: str | None) -> str:
        # A number of its own: verl's steps and its clearing of the cache are counted in one row.
        self._version += 1
        return self._routed.weights_updated(self._version, mode="flush", replica=server).status

    def _least_loaded(self) -> str:
        counts = self._running.counts()
        server_id = min(self._handles, key=lambda server_id: counts[server_id], default=None)
        if server_id is None:
            raise RuntimeError(NO_SERVERS)
        return server_id

    def _do(self, name: str, arguments: dict[str, Any]) -> Answer:
        if name in {"server_died", "weights_seen"}:
            return getattr(self, name)(**arguments)
        return super()._do(name, arguments)

    def _hear(self, decision: Decision, session: str | None, workload: str | None, waited_s: float) -> None:
        super()._hear(decision, session, workload, waited_s)
        if decision.status == "lost" and decision.reason in {"silent", "unconfirmed"}:
            self._running.forget(decision.turn)

    async def _is_dead(self, handle: Any) -> bool:  # noqa: ANN401 - an actor handle
        """Whether a server is known to be dead; told by the actor, which knows Ray."""
        del handle
        return False

    def _background(self) -> list[Coroutine[Any, Any, None]]:
        return [*super()._background(), self._look_after_servers()]

    async def _look_after_servers(self) -> None:
        while True:
            await asyncio.sleep(self.config.health_s)
            for server_id in self._handles:
                self._look_at(server_id)
