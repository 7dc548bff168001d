"""What the dashboard shows, gathered once a second however many pages look."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec import Struct

from turnout import __version__, control
from turnout.server.explain import REASONS, explain
from turnout.server.fleet_json import column
from turnout.server.problems import Problem, Problems, problems_of
from turnout.server.recent import Seen
from turnout.server.schema import Receipt, decision_of, finite

if TYPE_CHECKING:
    from collections.abc import Callable

    import turnout
    from turnout.aio import AsyncRouter
    from turnout.feeds.status import EngineStatus, FleetStatus
    from turnout.policies import FleetView

GATHER_S: Final = 0.9
"""A view walks over all sessions: pages that ask within this time share one."""
DECISIONS: Final = 50
SLOW_S: Final = 0.005
"""Gathering that took longer is done in a thread the next time, so that it delays no decision, s."""
HELD_LOOKED_AT: Final = 5_000
"""The oldest held turns, by which the table of holds is made."""
ROWS: Final = 100
"""Replicas in one answer."""


class ReplicaRow(Struct, kw_only=True):
    """One replica: the router's books beside what the engine says of itself. Tokens; shares 0..1; null = unknown."""

    name: str
    state: str
    reason: str
    attention: str
    kind: str
    accepting: bool
    feed: str
    feed_reason: str
    weight_version: int
    kv_tokens: float | None
    charge_tokens: float
    commit_tokens: float
    idle_tokens: float
    ceiling_tokens: float | None
    engine_kv_fraction: float | None
    running_turns: int
    engine_running: int | None
    engine_waiting: int | None
    sessions: int
    hit_fraction: float | None
    missing_cause: str


class WorkloadRow(Struct, kw_only=True):
    """Sessions of one workload by state, and what it finished."""

    name: str
    queued: int
    running: int
    idle: int
    paused: int
    paused_waiting: int
    finished: int
    share: float | None
    target: float | None
    held_tokens: float
    oldest_hold_s: float


class HoldRow(Struct, kw_only=True):
    """Turns that are held for one reason."""

    reason: str
    words: str
    turns: int
    oldest_s: float
    need_tokens: int


class DecisionRow(Struct, kw_only=True):
    """One decision, with its number among those of this process."""

    number: int
    turn: str
    status: str
    reason: str
    replica: str | None
    session: str | None
    workload: str | None
    waited_s: float
    at_s: float
    cached_tokens: int
    words: str
    receipt: Receipt


class Totals(Struct, kw_only=True):
    """Sums over the fleet now, and counts since the start."""

    replicas: int
    states: dict[str, int]
    feeds: dict[str, int]
    kv_tokens: float | None
    charge_tokens: float
    commit_tokens: float
    idle_tokens: float
    ceiling_tokens: float | None
    open_turns: int
    held_turns: int
    oldest_hold_s: float
    live_sessions: int
    finished: int
    prompt_tokens: int
    expected_tokens: int
    hit_fraction: float | None


class Board(Struct, kw_only=True):
    """All that the page shows."""

    instance: str
    version: str
    policy: str
    control_steps: int
    at_s: float
    up_s: float
    totals: Totals
    problems: list[Problem]
    workloads: list[WorkloadRow]
    holds: list[HoldRow]
    holds_counted: int
    replicas: list[ReplicaRow]
    replicas_found: int
    decisions: list[DecisionRow]


class Gatherer:
    """Listens to a router and gathers what the dashboard shows.

    Args:
        routed: The router.
        fleet: Answers what is known of the engines now; None = none are followed.
        instance: Changes when the server is started again.
    """

    def __init__(self, routed: AsyncRouter, fleet: Callable[[], FleetStatus] | None, instance: str) -> None:
        self._routed = routed
        self._fleet = fleet
        self._instance = instance
        self._began_s = time.monotonic()
        self._gathered_s = float("-inf")
        self._took_s = 0.0
        self._gathering = asyncio.Lock()
        self._board: Board | None = None
        self._decisions: deque[tuple[int, Seen]] = deque(maxlen=DECISIONS)
        self._number = 0
        self._prompt_tokens = 0
        self._expected_tokens = 0
        self.unlisten = routed.listen(self._hear)

    def _hear(self, decision: turnout.Decision, session: str | None, workload: str | None, waited_s: float) -> None:
        self._number += 1
        self._decisions.append((self._number, Seen(decision, session, workload, waited_s, time.time())))
        if decision.placed:
            self._prompt_tokens += decision.receipt.prompt_tokens
            self._expected_tokens += decision.cached_tokens

    async def board(self, *, after: int = 0, find: str = "", order: str = "row", skip: int = 0) -> Board:
        """Gather.

        Args:
            after: Number of the latest decision that the page has.
            find: Part of the name or state of the replicas to show; empty = all.
            order: `row` (as they joined), `name`, `worst` (problems first, then the fullest) or `full`.
            skip: Replicas to leave out at the beginning.

        Returns:
            At most `ROWS` replicas and `DECISIONS` decisions.
        """
        async with self._gathering:
            began = time.monotonic()
            if self._board is None or began - self._gathered_s >= GATHER_S:
                fleet = None if self._fleet is None else self._fleet()
                slow = self._took_s > SLOW_S
                self._board = await asyncio.to_thread(self._gather, fleet) if slow else self._gather(fleet)
                self._gathered_s = time.monotonic()
                self._took_s = self._gathered_s - began
            board = self._board
        rows = [row for row in board.replicas if find in f"{row.name} {row.state} {row.feed} {row.kind}"]
        if order != "row":
            rows.sort(key=ORDERS.get(order, ORDERS["name"]))
        decisions = [decision_row(number, seen) for number, seen in self._decisions if number > after]
        fields = {name: getattr(board, name) for name in Board.__struct_fields__}
        shown = {"replicas": rows[skip : skip + ROWS], "replicas_found": len(rows), "decisions": decisions}
        return Board(**{**fields, **shown})

    def _gather(self, fleet: FleetStatus | None) -> Board:
        router = self._routed.router
        view, stats = router.view(), router.stats()
        problems = problems_of(self._routed, view, fleet)
        replicas = replica_rows(view, fleet, problems, ceilings(router, view))
        held = self._routed.held(HELD_LOOKED_AT)
        holds: dict[str, HoldRow] = {}
        for turn in held:
            reason, need_tokens = turn.decision.reason, turn.decision.receipt.need_tokens
            row = holds.setdefault(
                reason, HoldRow(reason=reason, words=REASONS.get(reason, reason), turns=0, oldest_s=0.0, need_tokens=0)
            )
            row.turns += 1
            row.oldest_s = max(row.oldest_s, turn.held_s)
            row.need_tokens += need_tokens
        policy = router.policy
        return Board(
            instance=self._instance,
            version=__version__,
            policy="none" if policy is None else type(policy).__name__,
            control_steps=control.state_of(router).steps,
            at_s=time.time(),
            up_s=time.monotonic() - self._began_s,
            totals=self._totals(view, stats, replicas),
            problems=problems.sorted(),
            workloads=workload_rows(view),
            holds=sorted(holds.values(), key=lambda row: -row.turns),
            holds_counted=len(held),
            replicas=replicas,
            replicas_found=len(replicas),
            decisions=[],
        )

    def _totals(self, view: FleetView, stats: dict[str, int], replicas: list[ReplicaRow]) -> Totals:
        known = ~np.isnan(view.hit_fraction) & (view.forecast_tokens > 0)
        forecast = float(view.forecast_tokens[known].sum())
        ceiling = [row.ceiling_tokens for row in replicas]
        return Totals(
            replicas=len(replicas),
            states=_count(row.state for row in replicas),
            feeds=_count(row.feed for row in replicas),
            kv_tokens=finite(float(view.kv_tokens.sum())),
            charge_tokens=float(view.charge_tokens.sum()),
            commit_tokens=float(view.commit_tokens.sum()),
            idle_tokens=float(view.idle_tokens.sum()),
            ceiling_tokens=None if None in ceiling else sum(tokens for tokens in ceiling if tokens is not None),
            open_turns=stats["open_turns"],
            held_turns=stats["held_turns"],
            oldest_hold_s=float(view.oldest_hold_s.max(initial=0.0)),
            live_sessions=stats["live_sessions"],
            finished=stats["sessions_finished"],
            prompt_tokens=self._prompt_tokens,
            expected_tokens=self._expected_tokens,
            hit_fraction=float((view.hit_fraction * view.forecast_tokens)[known].sum()) / forecast
            if forecast
            else None,
        )


def _fullness(row: ReplicaRow) -> float:
    return row.commit_tokens / row.kv_tokens if row.kv_tokens else 0.0


_SEVERITY: Final = {"error": 0, "warning": 1, "note": 2}
ORDERS: Final[dict[str, Callable[[ReplicaRow], Any]]] = {
    "name": lambda row: row.name,
    "worst": lambda row: (_SEVERITY.get(row.attention, len(_SEVERITY)), -_fullness(row)),
    "full": lambda row: -_fullness(row),
}


def _count(words: Any) -> dict[str, int]:  # noqa: ANN401 - an iterable of str
    counts: dict[str, int] = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    return counts


def ceilings(router: turnout.Router, view: FleetView) -> np.ndarray[Any, Any]:
    """The ceiling in force of each replica, as the policy last set it.

    Args:
        router: The router.
        view: The fleet now.

    Returns:
        (R,) tokens; the capacity where no ceiling was set.
    """
    state = control.state_of(router)
    sent = state.sent.get("ceiling_tokens")
    if sent is None or state.rows is None:
        return view.kv_tokens
    by_name = dict(zip(state.rows[0], np.broadcast_to(sent, (len(state.rows[0]),)).tolist(), strict=True))
    return np.array([by_name.get(name, kv) for name, kv in zip(view.replicas, view.kv_tokens.tolist(), strict=True)])


def replica_rows(
    view: FleetView, fleet: FleetStatus | None, problems: Problems, ceiling: np.ndarray[Any, Any]
) -> list[ReplicaRow]:
    """The replicas of the router, then the engines that are not in it.

    Args:
        view: The fleet as the router sees it.
        fleet: What its engines say.
        problems: What is wrong.
        ceiling: (R,) ceilings, tokens.

    Returns:
        One row for each.
    """
    engines = {} if fleet is None else {engine.name: engine for engine in fleet.engines}
    names = (
        *("accepting", "exact", "weight_version", "kv_tokens", "charge_tokens", "commit_tokens", "idle_tokens"),
        *("running_turns", "hit_fraction", "engine_kv_fraction", "engine_running", "engine_waiting"),
    )
    columns = [column(getattr(view, name)) for name in names]
    columns += [column(view.sessions.sum(axis=1)), column(ceiling)]
    rows = []
    for name, *values in zip(view.replicas, *columns, strict=True):
        found = dict(zip((*names, "sessions", "ceiling_tokens"), values, strict=True))
        for count in ("engine_running", "engine_waiting"):
            found[count] = None if found[count] is None else int(found[count])
        told = _engine(engines.pop(name, None), problems, name, accepting=found["accepting"], exact=found.pop("exact"))
        rows.append(ReplicaRow(name=name, **found, **told))
    empty = {"charge_tokens": 0.0, "commit_tokens": 0.0, "idle_tokens": 0.0, "running_turns": 0, "sessions": 0}
    unknown = dict.fromkeys(
        ("ceiling_tokens", "hit_fraction", "engine_kv_fraction", "engine_running", "engine_waiting")
    )
    for name, engine in engines.items():
        out: dict[str, Any] = {
            "accepting": False,
            "weight_version": -1,
            "kv_tokens": engine.kv_tokens,
            **empty,
            **unknown,
        }
        rows.append(ReplicaRow(name=name, **out, **_engine(engine, problems, name, accepting=False, exact=False)))
    return rows


def _engine(
    engine: EngineStatus | None, problems: Problems, name: str, *, accepting: bool, exact: bool
) -> dict[str, Any]:
    """What is known of a replica's engine; one that is not followed lives as long as the router has it."""
    attention = problems.by_replica.get(name, "")
    if engine is None:
        state, feed = "up" if accepting else "draining", "whole" if exact else "off"
        words = {"state": state, "reason": "", "kind": "", "feed": feed, "feed_reason": "", "missing_cause": ""}
        return {**words, "attention": attention}
    return {
        "state": engine.state,
        "reason": engine.reason,
        "attention": attention,
        "kind": "" if engine.kind == "auto" else f"{engine.kind} {engine.version}".strip(),
        "feed": engine.feed.state,
        "feed_reason": engine.feed.reason,
        "missing_cause": engine.shortfall.cause,
    }


def workload_rows(view: FleetView) -> list[WorkloadRow]:
    """The workloads.

    Args:
        view: The fleet.

    Returns:
        One row for each.
    """
    finished = int(view.finished.sum())
    running, idle = view.sessions_running.sum(axis=0), view.sessions_idle.sum(axis=0)
    return [
        WorkloadRow(
            name=name,
            queued=int(view.held_new[row]),
            running=int(running[row]),
            idle=int(idle[row]),
            paused=int(view.paused[row]),
            paused_waiting=int(view.held_paused[row]),
            finished=int(view.finished[row]),
            share=int(view.finished[row]) / finished if finished else None,
            target=finite(float(view.target[row])),
            held_tokens=float(view.held_tokens[row]),
            oldest_hold_s=float(view.oldest_hold_s[row]),
        )
        for row, name in enumerate(view.workloads)
    ]


def decision_row(number: int, seen: Seen) -> DecisionRow:
    """One decision as the page shows it.

    Args:
        number: Its number.
        seen: The decision.

    Returns:
        The row, with the decision in words.
    """
    decision = decision_of(seen.decision)
    return DecisionRow(
        number=number,
        turn=decision.turn,
        status=decision.status,
        reason=decision.reason,
        replica=decision.replica,
        session=seen.session,
        workload=seen.workload,
        waited_s=seen.waited_s,
        at_s=seen.at_s,
        cached_tokens=decision.cached_tokens,
        words=explain(seen.decision, seen.waited_s),
        receipt=decision.receipt,
    )
