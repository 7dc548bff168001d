"""Negative controls: a router that breaks a promise is caught by the laws that watch it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings

import turnout
from turnout import Replica, Workload
from turnout.policies import FleetView, Limits, Open
from turnout.testing import LAWS, PolicyViolation, check, check_policy, player, running
from turnout.testing.events import Abort, Add, Append, Complete, Control, End, Fork, Lose, Submit, Wait
from turnout.testing.player import Player
from turnout.testing.running import router_stays_sound
from turnout.testing.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from turnout.testing.check import Law

FLEET = [Replica("r0", kv_tokens=640.0)]
CLASSES = [Workload("w0")]
SOUND = next(law for law in LAWS if law.name == "router_stays_sound")


class Cap:
    """One session per replica."""

    def limits(self, view: FleetView, last: Limits) -> Limits:
        return Limits(session_cap=1, ceiling_tokens=0.9 * view.kv_tokens, lease_s=10.0)


class Ceiling:
    """Half of each replica."""

    def limits(self, view: FleetView, last: Limits) -> Limits:
        return Limits(ceiling_tokens=0.5 * view.kv_tokens, lease_s=10.0)


class SaysItTwice(turnout.Router):
    def drain(self) -> list[turnout.Decision]:
        words = super().drain()
        return [*words, *words]


class ForgetsAWord(turnout.Router):
    def drain(self) -> list[turnout.Decision]:
        return [word for word in super().drain() if not word.placed]


class IgnoresCeilings(turnout.Router):
    def raw_set_limits(self, fields, **rows):
        return super().raw_set_limits({name: value for name, value in fields.items() if "ceiling" not in name}, **rows)


class IgnoresCaps(turnout.Router):
    def raw_set_limits(self, fields, **rows):
        return super().raw_set_limits({name: value for name, value in fields.items() if "cap" not in name}, **rows)


class CutsWhatRuns(turnout.Router):
    """Ends the sessions of a replica to keep a policy's new limits."""

    def raw_set_limits(self, fields, **rows):
        for session in ("s0", "s1", "s2"):
            self.end_session(session, now=rows.get("now"))
        return super().raw_set_limits(fields, **rows)


class CompletesTwice(turnout.Router):
    def complete(self, turn, output=None, **keywords):
        super().complete(turn, output, **keywords)
        return super().complete(turn, output, **keywords)


@pytest.mark.parametrize(
    ("router", "policy", "broken"),
    [
        (SaysItTwice, Cap, "I4"),
        (ForgetsAWord, Cap, "I13"),
        (IgnoresCeilings, Ceiling, "I3"),
        (IgnoresCaps, Cap, "I3"),
        (CutsWhatRuns, Cap, "I13"),
        (CompletesTwice, Cap, "I4"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_broken_promise_is_noticed(router: type, policy: type, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(player, "Router", router)
    monkeypatch.setattr(check, "SHRINK_ATTEMPTS", 40)
    with pytest.raises(PolicyViolation) as found:
        check_policy(policy, examples=150, laws=[SOUND])
    assert found.value.numbers.startswith(broken), found.value
    with pytest.raises(PolicyViolation) as again:
        exec(compile(found.value.code, "printed", "exec"), {"make_policy": policy})  # noqa: S102 - what was printed
    assert again.value.numbers == found.value.numbers


def test_a_router_that_never_places_starves(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stubborn(turnout.Router):
        def drain(self) -> list[turnout.Decision]:
            super().drain()
            return []

    monkeypatch.setattr(running, "Router", Stubborn)
    with pytest.raises(PolicyViolation, match="nobody_starves"):
        check_policy(Cap, examples=50, laws=[next(law for law in LAWS if law.name == "nobody_starves")])


def test_a_history_by_hand() -> None:
    history = [
        Control(),
        Submit("t0", "s0", "w0", [(1, 100)]),
        Submit("t0", "s0", "w0", [(1, 100)]),
        Submit("t1", "s1", "w0", [(1, 100), (2, 16)]),
        Submit("t2", "s2", "w0", [(3, 200)], deadline_s=5.0),
        Complete("t0", (4, 20)),
        Append("t3", "s0", (5, 10)),
        Fork("s0", "s3"),
        Wait(6.0),
        Abort("t2"),
        Lose("r0"),
        End("s0"),
    ]
    router_stays_sound(Ceiling, fleet=FLEET, workloads=CLASSES, history=history)
    watched = Player(Subject(Ceiling, "by hand"), FLEET, CLASSES)
    for event in history:
        watched.play(event)
    assert {name: turn.status for name, turn in watched.turns.items()} == dict.fromkeys(
        ("t0", "t1", "t2", "t3"), "ended"
    )
    assert watched.router.stats() | {"placed": 3, "expired": 1, "lost": 2, "completed": 1} == watched.router.stats()


def test_a_replica_that_joins_is_not_held_to_limits_that_do_not_name_it() -> None:
    """Until the next control step it has what its neighbours have, and alone no caps at all."""
    history = [
        Control(),
        Lose("r0"),
        Add(Replica("r0", kv_tokens=640.0)),
        Submit("t0", "s0", "w0", [(1, 1)]),
        Submit("t1", "s1", "w0", [(2, 1)]),
    ]
    router_stays_sound(Cap, fleet=FLEET, workloads=CLASSES, history=history)


def test_generated_histories_reach_every_corner() -> None:
    """So that the law cannot pass for want of trying: counters and reasons over some hundred histories."""
    seen: set[str] = set()

    @settings(max_examples=120, derandomize=True, database=None)
    @given(scenario=SOUND.scenarios)
    def collect(scenario: dict) -> None:
        watched = Player(Subject(Cap, "collect"), scenario["fleet"], scenario["workloads"])
        for event in scenario["history"]:
            watched.play(event)
            seen.update(word.reason for word in watched.told)
        seen.update(name for name, count in watched.router.stats().items() if count)

    collect()
    expected = {"admitted", "resumed", "continuation", "forced", "pauses", "expired", "lost", "rejected", "held"}
    assert expected | {"completed", "aborted", "late", "unknown", "edited", "shortened"} <= seen


def events_of(law: Law) -> Iterator[type]:
    """Kinds of events that a law's histories hold."""
    seen: set[type] = set()

    @settings(max_examples=60, derandomize=True, database=None)
    @given(scenario=law.scenarios)
    def collect(scenario: dict) -> None:
        seen.update(type(event) for event in scenario["history"])

    collect()
    yield from seen


def test_generated_histories_hold_every_event() -> None:
    kinds = player.events.Event.__args__
    assert set(events_of(SOUND)) == set(kinds)


def test_open_histories_are_sound() -> None:
    check_policy(Open, examples=50, laws=[SOUND], seed=3)


def test_content_numbers_share_their_tokens() -> None:
    one, other = (player.events.tokens_of(pieces) for pieces in ([(7, 5)], [(7, 3), (8, 2)]))
    np.testing.assert_array_equal(one[:3], other[:3])
    assert not np.isin(one, other[3:]).any()
