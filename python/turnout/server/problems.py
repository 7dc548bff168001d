"""What is wrong now, in words: what a person should see before anything else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from turnout import control

if TYPE_CHECKING:
    from turnout.aio import AsyncRouter
    from turnout.feeds.status import EngineStatus, FleetStatus
    from turnout.policies import FleetView

Severity: TypeAlias = Literal["error", "warning", "note"]

NAMED: Final = 5
"""Replicas that a problem names; the others are counted."""

ORDER: Final[dict[str, int]] = {"error": 0, "warning": 1, "note": 2}
LIFE: Final[dict[str, tuple[Severity, str]]] = {
    "dead": ("error", "The engine is gone: its replica is out of the router"),
    "stale": ("warning", "The engine has been silent for a while"),
    "joining": ("warning", "The engine has not answered yet"),
    "restarted": ("note", "The engine was restarted: its cache is empty"),
}
FEEDS: Final[dict[str, tuple[Severity, str]]] = {
    "stale": ("warning", "The feed of cache events is stale: own decisions alone say what is cached"),
    "unreadable": ("error", "Cache events cannot be read: own decisions alone say what is cached"),
    "connecting": ("note", "No cache event has come yet: own decisions say what is cached"),
}


@dataclass(slots=True)
class Problem:
    """Something that is wrong.

    Attributes:
        severity: `error` (turns suffer), `warning` (they may soon) or `note`.
        what: What, in words.
        why: The likely cause or the message behind it; may be empty.
        replicas: The first of the replicas that it is about.
        replicas_total: How many they are; 0 = it is about the router.
    """

    severity: Severity
    what: str
    why: str = ""
    replicas: list[str] = field(default_factory=list)
    replicas_total: int = 0


class Problems:
    """What is wrong; what differs by the replica alone is one problem.

    Attributes:
        by_replica: The worst severity by replica.
    """

    def __init__(self) -> None:
        self._by_kind: dict[tuple[Severity, str], Problem] = {}
        self.by_replica: dict[str, Severity] = {}

    def add(self, severity: Severity, what: str, why: str = "", replica: str | None = None) -> None:
        """Note one.

        Args:
            severity: How bad it is.
            what: What is wrong.
            why: Why; the first one stays.
            replica: Where; None = the router itself.
        """
        problem = self._by_kind.setdefault((severity, what), Problem(severity, what, why))
        if replica is None:
            return
        problem.replicas_total += 1
        if len(problem.replicas) < NAMED:
            problem.replicas.append(replica)
        if ORDER[severity] < ORDER.get(self.by_replica.get(replica, ""), len(ORDER)):
            self.by_replica[replica] = severity

    def sorted(self) -> list[Problem]:
        """All of them, the worst first."""
        return sorted(self._by_kind.values(), key=lambda problem: ORDER[problem.severity])


def problems_of(routed: AsyncRouter, view: FleetView, fleet: FleetStatus | None) -> Problems:
    """Look for what is wrong.

    Args:
        routed: The router.
        view: The fleet as it is now.
        fleet: What its engines say; None = none are followed.

    Returns:
        The problems; none when all is well.
    """
    found = Problems()
    _router_problems(found, routed, view)
    for row in view.stalled.nonzero()[0]:
        what = "Stalled: turns wait and nothing is charged there"
        found.add("error", what, "no limit lets them in", view.replicas[row])
    for engine in () if fleet is None else fleet.engines:
        _engine_problems(found, engine)
    return found


def _router_problems(found: Problems, routed: AsyncRouter, view: FleetView) -> None:
    clock = routed.clock
    if not clock.alive:
        found.add("error", "The router's clock does not run: nothing is decided any more", clock.last_error)
    if routed.closed:
        found.add("warning", "The server is ending: it takes no new turns")
    elif not view.accepting.any():
        what = "No replica accepts turns" if view.replicas else "There is no replica yet"
        found.add("error", what, "" if view.replicas else "name engines with --engine, or add replicas by the API")
    if routed.journal is not None and routed.journal.error:
        found.add("error", "The journal is not kept: a restart would forget", routed.journal.error)
    state = control.state_of(routed.router)
    if state.consecutive_failures:
        what = f"The policy failed {state.consecutive_failures} times in a row: its last good limits are in force"
        if state.consecutive_failures >= control.FALLBACK_AFTER:
            share = f"{control.FALLBACK_CEILING_SHARE:.0%}"
            what = f"The policy failed {state.consecutive_failures} times in a row: a ceiling of {share} stands alone"
        found.add("error", what, state.last_error)


def _engine_problems(found: Problems, engine: EngineStatus) -> None:
    if engine.state in LIFE:
        found.add(*LIFE[engine.state], engine.reason, engine.name)
    if engine.state in {"dead", "joining"}:
        return  # nothing else can be known of it
    if engine.feed.state in FEEDS:
        found.add(*FEEDS[engine.feed.state], engine.feed.reason, engine.name)
    if engine.prefix_caching is False:
        found.add("warning", "Prefix caching is off in the engine: every prompt is computed anew", "", engine.name)
    if engine.shortfall.wrong:
        what = "The books are off: turns find less in the cache than was forecast"
        why = f"{engine.shortfall.share:.0%} of the forecast is missing; {engine.shortfall.cause}"
        found.add("error", what, why, engine.name)
