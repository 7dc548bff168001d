"""Hypothesis strategies: fleets, workloads, views of them, histories of events.

Token counts and times are whole numbers, so that sums are exact in every order and a law about order can be exact too.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from hypothesis import strategies as st

from turnout.config import Replica, Workload
from turnout.policies import FleetView
from turnout.testing import events
from turnout.testing.tables import later

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

BLOCK: Final = 16
"""Tokens per block in generated views and histories."""

_NOMINAL: Final = 1_000
"""What a session of unknown size holds in a generated view, tokens."""


@st.composite
def fleets(
    draw: st.DrawFn, *, replicas: tuple[int, int] = (1, 6), kv_blocks: tuple[int, int] = (20, 200_000)
) -> list[Replica]:
    """Fleets of equal, unequal or partly unknown (infinite) capacity.

    Args:
        draw: Given by Hypothesis.
        replicas: Least and largest number of replicas.
        kv_blocks: Least and largest capacity, blocks of 16 tokens.

    Returns:
        A strategy for lists of replicas `r0`, `r1`, ...

    Example:
        >>> from hypothesis import given, settings
        >>> @settings(max_examples=5, database=None)
        ... @given(fleet=fleets(replicas=(2, 4)))
        ... def names_differ(fleet):
        ...     assert len({replica.name for replica in fleet}) == len(fleet)
        >>> names_differ()
    """
    count = draw(st.integers(*replicas))
    blocks = st.integers(*kv_blocks)
    kind = draw(st.sampled_from(["equal", "unequal", "unknown"]))
    if kind == "equal":
        sizes: list[float] = [float(BLOCK * draw(blocks))] * count
    else:
        size = blocks.map(lambda number: float(BLOCK * number))
        either = size if kind == "unequal" else st.one_of(size, st.just(math.inf))
        sizes = draw(st.lists(either, min_size=count, max_size=count))
    return [Replica(f"r{at}", kv_tokens=size) for at, size in enumerate(sizes)]


@st.composite
def workloads(draw: st.DrawFn, *, number: tuple[int, int] = (1, 5)) -> list[Workload]:
    """Workloads `w0`, `w1`, ... with or without a target mixture and priors.

    Args:
        draw: Given by Hypothesis.
        number: Least and largest number of workloads.

    Returns:
        A strategy for lists of workloads.
    """
    count = draw(st.integers(*number))
    parts = draw(st.one_of(st.none(), st.lists(st.integers(1, 8), min_size=count, max_size=count)))
    priors = draw(st.lists(st.sampled_from([0, 0, 40, 400, 4_000]), min_size=count, max_size=count))
    return [
        Workload(
            f"w{at}",
            target=math.nan if parts is None else parts[at] / sum(parts),
            context_tokens=float(prior),
            growth_tokens=float(prior // 2),
            residency_s=float(prior and 30 * (at + 1)),
        )
        for at, prior in enumerate(priors)
    ]


@st.composite
def fleet_views(
    draw: st.DrawFn,
    *,
    fleet: st.SearchStrategy[list[Replica]] | None = None,
    classes: st.SearchStrategy[list[Workload]] | None = None,
) -> FleetView:
    """Views whose columns agree with each other, as a router would report them.

    Among them: one replica, many workloads, workloads without sessions, no traffic at all, everybody waiting, a cold
    start (every estimate 0 = unknown), replicas that accept nobody, replicas of unknown capacity, more charge than
    capacity.

    Args:
        draw: Given by Hypothesis.
        fleet: The replicas; default `fleets()`.
        classes: The workloads; default `workloads()`.

    Returns:
        A strategy for views with read-only columns.

    Example:
        >>> from hypothesis import given, settings
        >>> @settings(max_examples=5, database=None)
        ... @given(view=fleet_views())
        ... def commit_covers_charge(view):
        ...     assert (view.commit_tokens >= view.charge_tokens).all()
        >>> commit_covers_charge()
    """
    machines = draw(fleets() if fleet is None else fleet)
    kinds = draw(workloads() if classes is None else classes)
    r, w = len(machines), len(kinds)
    traffic = draw(st.sampled_from(["some", "none", "cold", "start"]))

    def numbers(most: int, *shape: int, least: int = 0) -> Any:  # noqa: ANN401 - an int64 array
        count = math.prod(shape)
        drawn = draw(st.lists(st.integers(least, most), min_size=count, max_size=count))
        return np.array(drawn, dtype=np.int64).reshape(shape)

    def counts(most: int, *shape: int) -> Any:  # noqa: ANN401 - an int64 array
        return np.zeros(shape, dtype=np.int64) if traffic == "none" else numbers(most, *shape)

    def estimates(most: int) -> Any:  # noqa: ANN401 - an int64 array
        return np.zeros(w, dtype=np.int64) if traffic == "cold" else numbers(most, w)

    # One workload in four has no session; at the start nobody has, and everybody waits.
    busy = (numbers(3, w) > 0) & (traffic != "start")
    running, idle = counts(20, r, w) * busy, counts(20, r, w) * busy
    held_new, held_paused, rate = counts(40, w), counts(10, w), counts(64, w)
    held_new = held_new + (traffic == "start")
    size, residency, growth, output = estimates(60_000), estimates(2_000), estimates(20_000), estimates(2_000)
    sessions, holds = running + idle, np.where(size > 0, size, _NOMINAL)
    own = _blocks(sessions * holds)
    # Between the largest workload alone (all shared) and the sum of all (nothing shared).
    largest, total = own.max(axis=1, initial=0), own.sum(axis=1)
    charge = _blocks(largest + (total - largest) * numbers(4, r) // 4)
    idle_tokens = np.minimum(_blocks((idle * holds).sum(axis=1)), charge)
    turns = 32 * numbers(2, r)
    finished = np.where((size > 0) | (residency > 0), held_new + 1, 0)
    return FleetView.build(
        [machine.name for machine in machines],
        [kind.name for kind in kinds],
        step=draw(st.integers(0, 50)),
        now_s=float(draw(st.integers(0, 5_000))),
        kv_tokens=[machine.kv_tokens for machine in machines],
        block_tokens=BLOCK,
        accepting=numbers(7, r) < 7,  # noqa: PLR2004 - one in eight is closed
        weight_version=draw(st.sampled_from([-1, 0, 3])),
        charge_tokens=charge,
        commit_tokens=charge + _blocks((sessions * growth).sum(axis=1)),
        idle_tokens=idle_tokens,
        expired_tokens=_blocks(idle_tokens * numbers(2, r) // 2),
        resident_tokens=np.minimum(charge, [machine.kv_tokens for machine in machines]),
        backlog_tokens=running.sum(axis=1) * 100,
        running_turns=running.sum(axis=1),
        lost_tokens=_blocks(idle_tokens * numbers(2, r) // 4),
        reported_turns=turns,
        forecast_tokens=turns * 64,
        missing_tokens=turns * 16 * numbers(4, r),
        stalled=(charge == 0) & bool((held_new + held_paused).any()),
        prefill_tokens_per_s=draw(st.sampled_from([20_000, 1_000, 100_000])),
        sessions_running=running,
        sessions_idle=idle,
        workload_tokens=own,
        reserved_tokens=running * output,
        target=[kind.target for kind in kinds],
        held_new=held_new,
        held_paused=held_paused,
        paused=2 * held_paused,
        held_tokens=(held_new + held_paused) * holds,
        oldest_hold_s=30 * (held_new + held_paused),
        arrivals_per_s=rate / 8,
        finishes_per_s=rate / 16,
        finished=finished,
        pauses=held_paused,
        context_tokens=size,
        growth_tokens=growth,
        final_tokens=np.where(size > 0, size + growth, 0),
        output_tokens=output,
        residency_s=residency,
        token_seconds=size * residency,
        samples=finished,
        virtual_time=finished,
    )


def _blocks(tokens: Any) -> Any:  # noqa: ANN401 - an integer array
    """Rounded up to whole blocks."""
    return -(-tokens // BLOCK) * BLOCK


@st.composite
def successive_views(
    draw: st.DrawFn, *, count: int = 2, fleet: st.SearchStrategy[list[Replica]] | None = None
) -> list[FleetView]:
    """Views of one fleet at control steps that follow each other, for what a policy remembers.

    Args:
        draw: Given by Hypothesis.
        count: How many.
        fleet: The replicas; default `fleets()`.

    Returns:
        A strategy for lists of views with equal rows and rising steps.
    """
    machines, kinds = draw(fleets() if fleet is None else fleet), draw(workloads())
    any_view = fleet_views(fleet=st.just(machines), classes=st.just(kinds))
    first = draw(any_view)
    views = [first]
    for at in range(1, count):
        other = draw(st.one_of(st.just(first), any_view))
        now = dataclasses.replace(other, step=first.step, now_s=first.now_s)
        views.append(later(now, at))
    return views


@st.composite
def event_sequences(
    draw: st.DrawFn, *, fleet: Sequence[Replica], classes: Sequence[Workload], most: int = 30
) -> list[events.Event]:
    """Histories of a router: what clients, engines and time do to it, in any order.

    Turns are asked for, asked for again with the same id or a higher attempt, continued, completed and aborted in any
    order, once, twice or never (a crash, which the time limit of silent turns ends); sessions fork and end; replicas
    are lost, join and get new weights; the policy is asked in between.

    Args:
        draw: Given by Hypothesis.
        fleet: The replicas at the start.
        classes: The workloads.
        most: Largest number of events.

    Returns:
        A strategy for lists of events.
    """
    return _History(draw, fleet, classes).draw_events(most)


_KINDS: Final = (
    *["submit"] * 6,
    *["append"] * 3,
    *["complete"] * 6,
    *["control"] * 3,
    *["wait"] * 2,
    *["retry", "attempt", "progress", "abort", "fork", "end", "lose", "add", "weights"],
)
"""Common events more often: a history in which little is admitted shows little."""


class _History:
    """Draws one event after the other; turns and sessions are named from what was drawn before."""

    def __init__(self, draw: st.DrawFn, fleet: Sequence[Replica], classes: Sequence[Workload]) -> None:
        self.draw = draw
        self.replicas = [replica.name for replica in fleet]
        self.classes = [workload.name for workload in classes]
        finite = [replica.kv_tokens for replica in fleet if math.isfinite(replica.kv_tokens)]
        # A prompt takes up to two thirds of a replica, so that two fit sometimes and three never.
        self.longest = int(min([*finite, 3_000])) * 2 // 3
        self.asked: list[events.Submit | events.Append] = []
        self.prompts: dict[str, list[events.Piece]] = {}
        self.contents = 0

    def draw_events(self, most: int) -> list[events.Event]:
        told: list[events.Event] = [events.Control()] if self.draw(st.booleans()) else []
        kind = st.sampled_from(_KINDS)
        # Left alone, Hypothesis makes lists of six; long ones reach further, short ones are what a long one shrinks to.
        short, long = st.lists(kind, min_size=1, max_size=8), st.lists(kind, min_size=most // 2, max_size=most)
        for name in self.draw(st.one_of(short, long)):
            event = getattr(self, f"_{name}")()
            if event is not None:
                told.append(event)
        return told

    def _one(self, names: Iterable[Any]) -> Any:  # noqa: ANN401 - one of them
        every = list(names)
        return every[self._number(0, len(every) - 1)]

    def _number(self, least: int, most: int) -> int:
        return self.draw(st.integers(least, most))

    def _piece(self, most: int) -> events.Piece:
        self.contents += 1
        return (self.contents, self._number(1, max(most, 1)))

    def _submit(self) -> events.Event:
        session = self._one(["s0", "s1", "s2", "s3", "s4", None])
        before = self._one([[], *self.prompts.values()])
        # Its own history or another's, the whole or a part of it, and something new.
        prompt = [*before[: self._number(0, len(before))], self._piece(self.longest // 2)]
        event = events.Submit(
            f"t{len(self.asked)}",
            session,
            self._one(self.classes),
            prompt,
            max_new_tokens=self._one([None, None, 64]),
            hold=self._one([True, True, True, False]),
            deadline_s=self._one([None, None, None, 20.0]),
            candidates=self._one([None, None, None, self.replicas[:1]]),
        )
        self.asked.append(event)
        if session is not None:
            self.prompts[session] = prompt
        return event

    def _append(self) -> events.Event | None:
        if not self.prompts:
            return None
        event = events.Append(f"t{len(self.asked)}", self._one(self.prompts), self._piece(64))
        self.asked.append(event)
        return event

    def _retry(self) -> events.Event | None:
        return self._one(self.asked) if self.asked else None

    def _attempt(self) -> events.Event | None:
        known = [event for event in self.asked if isinstance(event, events.Submit)]
        return dataclasses.replace(self._one(known), attempt=1) if known else None

    def _turn(self) -> str | None:
        return self._one(self.asked).turn if self.asked else None

    def _complete(self) -> events.Event | None:
        turn = self._turn()
        return None if turn is None else events.Complete(turn, self._piece(200))

    def _abort(self) -> events.Event | None:
        turn = self._turn()
        return None if turn is None else events.Abort(turn)

    def _progress(self) -> events.Event | None:
        turn = self._turn()
        return None if turn is None else events.Progress(turn, self._number(0, 300))

    def _fork(self) -> events.Event | None:
        return events.Fork(self._one(self.prompts), self._one(["s4", "s5"])) if self.prompts else None

    def _end(self) -> events.Event | None:
        return events.End(self._one(self.prompts), self.draw(st.booleans())) if self.prompts else None

    def _lose(self) -> events.Event:
        return events.Lose(self._one(self.replicas))

    def _add(self) -> events.Event:
        name = self._one([*self.replicas, f"r{len(self.replicas)}"])
        return events.Add(Replica(name, kv_tokens=float(BLOCK * self._number(20, 200))))

    def _weights(self) -> events.Event:
        return events.Weights(
            self._number(0, 3), self._one(["flush", "keep", "salt"]), self._one([None, *self.replicas])
        )

    def _wait(self) -> events.Event:
        return events.Wait(self._one([1.0, 25.0, 601.0, 3_700.0, 7_300.0]))

    def _control(self) -> events.Event:
        return events.Control()
