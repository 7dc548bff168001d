"""`/metrics`: what a router, its feeds and its journal are doing, read when it is asked for."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.responses import Response
from starlette.routing import Route

from turnout import build_info
from turnout.control import state_of
from turnout.feeds.status import FeedState, State
from turnout.server import metric_table as table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from prometheus_client.metrics_core import Metric as Family
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    import turnout
    from turnout.aio import AsyncRouter
    from turnout.feeds import EngineStatus, Fleet
    from turnout.policies import FleetView

HOLD_BUCKETS: Final = (0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
DECISION_BUCKETS: Final = (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 5e-2, 0.25, 1.0)
MEDIA: Final = "text/plain; version=0.0.4; charset=utf-8"


class Seen(NamedTuple):
    """What a scrape is made of, read in one go.

    Attributes:
        view: State of the fleet.
        stats: Counters of the router.
        engines: What the feeds know of each engine.
    """

    view: FleetView
    stats: dict[str, int]
    engines: tuple[EngineStatus, ...]


class Metrics:
    """Counts what passes, and reads the rest at each scrape.

    Args:
        routed: The router.
        fleet: The engines that are followed.
        proxied: What became of requests to engines: `Proxy.counts`.
    """

    def __init__(
        self, routed: AsyncRouter, fleet: Fleet | None = None, proxied: Mapping[str, int] | None = None
    ) -> None:
        """Begin to listen."""
        self._proxied: Mapping[str, int] = {} if proxied is None else proxied
        self._routed = routed
        self._fleet = fleet
        made = {
            metric.name: (metric.name.removesuffix("_total"), metric.says, metric.labels) for metric in table.OTHERS
        }
        self._decisions = Counter(*made["turnout_decisions_total"], registry=None)
        self._requests = Counter(*made["turnout_http_requests_total"], registry=None)
        self._holds = Histogram(*made["turnout_hold_seconds"], registry=None, buckets=HOLD_BUCKETS)
        self._times = Histogram(*made["turnout_decision_seconds"], registry=None, buckets=DECISION_BUCKETS)
        self.unlisten = routed.listen(self._hear)

    def timed(self, name: str, seconds: float) -> None:
        """Note how long an operation took.

        Args:
            name: The operation.
            seconds: Its time, s.
        """
        self._times.labels(name).observe(seconds)

    def answered(self, endpoint: str, status: int) -> None:
        """Note an answer over HTTP.

        Args:
            endpoint: The route, never the path: that one is the caller's.
            status: HTTP status.
        """
        self._requests.labels(endpoint, str(status)).inc()

    def routes(self) -> list[Route]:
        """`/metrics`.

        Returns:
            The route.
        """

        async def metrics(_: Request) -> Response:
            # Read in the event loop, whose tables it is; written elsewhere, because a thousand replicas take a while.
            seen = self.read()
            return Response(await asyncio.to_thread(self.page, seen), media_type=MEDIA)

        return [Route("/metrics", metrics)]

    def read(self) -> Seen:
        """Read what is there now. In the event loop."""
        view = self._routed.router.view()
        # A view runs timers and may place turns: whoever waits for them is told.
        self._routed.collect()
        engines = () if self._fleet is None else self._fleet.status().engines
        return Seen(view, self._routed.router.stats(), engines)

    def page(self, seen: Seen | None = None) -> bytes:
        """The metrics in Prometheus' text format. In any thread.

        Args:
            seen: What was read; None = it is read now.

        Returns:
            The text.
        """
        registry = CollectorRegistry()
        registry.register(_Scrape(self, self.read() if seen is None else seen))
        ProcessCollector(registry=registry)
        page: bytes = generate_latest(registry)
        return page

    def families(self, seen: Seen) -> Iterator[Family]:
        """All metrics but those of the process.

        Args:
            seen: What was read.

        Yields:
            Them.
        """
        page = _Page()
        _replicas(page, seen.view)
        _workloads(page, seen.view)
        _engines(page, seen.engines)
        self._router(page, seen)
        # A copy: the event loop goes on counting.
        for event, count in list(self._proxied.items()):
            page.put("turnout_proxy_events_total", count, event)
        yield from page.families()
        for instrument in (self._decisions, self._requests, self._holds, self._times):
            for family in instrument.collect():
                # When a series began is of no use here, and would double their number.
                family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
                yield family

    def _hear(self, decision: turnout.Decision, session: str | None, workload: str | None, waited_s: float) -> None:
        del session
        self._decisions.labels(decision.status, decision.reason).inc()
        if waited_s > 0:
            names = self._routed.router.workloads
            self._holds.labels(workload or (names[0] if len(names) == 1 else "unnamed")).observe(waited_s)

    def _router(self, page: _Page, seen: Seen) -> None:
        router, clock, journal = self._routed.router, self._routed.clock, self._routed.journal
        for name, metric in table.COUNTS.items():
            page.put(metric.name, seen.stats[name])
        control = state_of(router)
        page.put("turnout_policy_steps_total", clock.steps)
        page.put("turnout_policy_errors_total", control.failures + clock.failures)
        page.put("turnout_policy_step_seconds", clock.last_step_s)
        ceilings = control.sent.get("ceiling_tokens")
        rows = control.rows[0] if control.rows is not None and ceilings is not None else ()
        known = dict(zip(rows, ceilings, strict=False)) if ceilings is not None else {}
        for name, kv_tokens in zip(seen.view.replicas, seen.view.kv_tokens, strict=True):
            page.put("turnout_ceiling_tokens", float(known.get(name, kv_tokens)), name)
        if journal is not None:
            page.put("turnout_journal_bytes", journal.writer.size_bytes)
            page.put("turnout_journal_rotations_total", journal.writer.rotations)
            page.put("turnout_journal_errors_total", journal.failures)
            page.put("turnout_journal_kept", not journal.error)
        build = build_info()
        page.put("turnout_build_info", 1, build["version"], build["kernel"])


class _Scrape(Collector):
    """One scrape, for the registry."""

    def __init__(self, metrics: Metrics, seen: Seen) -> None:
        self._metrics = metrics
        self._seen = seen

    def describe(self) -> Iterable[Family]:
        """Nothing beforehand: the registry need not look for names that stand twice."""
        return ()

    def collect(self) -> Iterator[Family]:
        """Write it."""
        return self._metrics.families(self._seen)


class _Page:
    """The families of the table, filled row by row."""

    def __init__(self) -> None:
        kinds = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}
        counted = {"turnout_decisions_total", "turnout_http_requests_total"}
        self._families: dict[str, Any] = {
            metric.name: kinds[metric.kind](metric.name, metric.says, labels=metric.labels)
            for metric in table.TABLE
            if metric.kind in kinds and metric.name not in counted
        }

    def put(self, name: str, value: float | None, *labels: str) -> None:
        """Add a row; what is not known has none."""
        if value is not None and not math.isnan(value):
            self._families[name].add_metric(labels, float(value))

    def families(self) -> Iterator[Family]:
        """All of them."""
        yield from self._families.values()


def _replicas(page: _Page, view: FleetView) -> None:
    for column, metric in table.REPLICA_COLUMNS.items():
        for name, value in zip(view.replicas, getattr(view, column).tolist(), strict=True):
            page.put(metric.name, value, name)
    for row, name in enumerate(view.replicas):
        for at, workload in enumerate(view.workloads):
            page.put("turnout_sessions", int(view.sessions_running[row, at]), name, workload, "running")
            page.put("turnout_sessions", int(view.sessions_idle[row, at]), name, workload, "idle")


def _engines(page: _Page, engines: tuple[EngineStatus, ...]) -> None:
    for engine in engines:
        name = engine.name
        for field, metric in (*table.ENGINE_VALUES.items(),):
            page.put(metric.name, getattr(engine, field), name)
        ranks = engine.feed.ranks
        for field, metric in table.RANK_SUMS.items():
            page.put(metric.name, sum(getattr(rank, field) for rank in ranks), name)
        page.put("turnout_feed_lag_seconds", max((r.age_s for r in ranks if r.age_s is not None), default=None), name)
        for state in get_args(State):
            page.put("turnout_engine_status", engine.state == state, name, state)
        for state in get_args(FeedState):
            page.put("turnout_feed_status", engine.feed.state == state, name, state)
        page.put("turnout_hit_shortfall_ratio", engine.shortfall.share, name)
        page.put("turnout_hit_shortfall_alert", engine.shortfall.wrong, name)


def _workloads(page: _Page, view: FleetView) -> None:
    for column, metric in table.WORKLOAD_COLUMNS.items():
        for name, value in zip(view.workloads, getattr(view, column).tolist(), strict=True):
            page.put(metric.name, value, name)
    finished = int(view.finished.sum())
    for at, name in enumerate(view.workloads):
        page.put("turnout_paused_sessions", int(view.paused[at]), name)
        page.put("turnout_held_sessions", int(view.held_new[at]), name, "new")
        page.put("turnout_held_sessions", int(view.held_paused[at]), name, "paused")
        if finished:
            page.put("turnout_mixture_finished_ratio", float(view.finished[at]) / finished, name)
    if finished:
        # NaN where a target is unset: no row then.
        page.put("turnout_mixture_distance_ratio", 0.5 * float(abs(view.finished / finished - view.target).sum()))


class Counted:
    """Counts the answers of an application by route and status.

    Args:
        app: The application.
        metrics: What counts.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        """Keep both."""
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, and note the status."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Set by the router of the application; who is refused before it, or asks for nothing known, has none.
                route = scope.get("route")
                self._metrics.answered(getattr(route, "path", "other"), message["status"])
            await send(message)

        await self._app(scope, receive, noted)
