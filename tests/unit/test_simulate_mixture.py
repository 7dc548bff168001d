"""The embedded mixture has the shape it claims, and scenarios are checked."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from turnout.errors import InvalidArgument
from turnout.simulate.mixture import CONTEXT_LIMIT_TOKENS, TARGETS, mixture

if TYPE_CHECKING:
    from turnout.simulate.scenario import Scenario


def by_class(scenario: Scenario, values: np.ndarray, workload: str) -> np.ndarray:
    """The values of the turns of one class."""
    of_turn = np.repeat(scenario.session_workload, np.diff(scenario.session_first_turn))
    return values[of_turn == scenario.workloads.index(workload)]


class TestShape:
    FULL = mixture(3_000, seed=11, scale=1)

    def test_agents(self) -> None:
        prompt = by_class(self.FULL, self.FULL.turn_prompt_tokens, "agent")
        assert np.percentile(prompt, [50, 95, 99]) == pytest.approx([38_000, 103_000, 123_000], rel=0.04)
        turns = np.diff(self.FULL.session_first_turn)[self.FULL.session_workload == 0]
        assert turns.mean() == pytest.approx(70, rel=0.05)
        assert np.percentile(by_class(self.FULL, self.FULL.turn_output_tokens, "agent"), 50) < 300
        gaps = by_class(self.FULL, self.FULL.turn_gap_s, "agent")
        assert np.percentile(gaps[gaps > 0], [50, 90]) == pytest.approx([6, 28], rel=0.1)

    def test_rlvr(self) -> None:
        output = by_class(self.FULL, self.FULL.turn_output_tokens, "rlvr")
        assert np.percentile(output, [50, 95]) == pytest.approx([48_000, 131_000], rel=0.04)
        assert np.percentile(by_class(self.FULL, self.FULL.turn_prompt_tokens, "rlvr"), 99) < 3_000

    def test_rlhf(self) -> None:
        assert np.percentile(by_class(self.FULL, self.FULL.turn_output_tokens, "rlhf"), 50) == pytest.approx(
            7_000, rel=0.06
        )
        assert np.percentile(by_class(self.FULL, self.FULL.turn_prompt_tokens, "rlhf"), 99) < 3_000

    def test_shares_of_sessions(self) -> None:
        for sessions in (1_000, 7):
            counts = np.bincount(mixture(sessions, seed=3).session_workload, minlength=3)
            assert np.abs(counts - sessions * np.array(TARGETS)).max() < 1

    def test_nothing_exceeds_the_context(self) -> None:
        assert (self.FULL.turn_prompt_tokens + self.FULL.turn_output_tokens <= CONTEXT_LIMIT_TOKENS + 1).all()

    def test_the_next_prompt_holds_the_answer(self) -> None:
        prompt, output = self.FULL.turn_prompt_tokens, self.FULL.turn_output_tokens
        inner = np.ones(self.FULL.turns, dtype=bool)
        inner[self.FULL.session_first_turn[1:] - 1] = False
        at = np.flatnonzero(inner)
        assert (prompt[at + 1] >= prompt[at] + output[at]).all()


def test_scale_divides_lengths_and_gaps_but_not_turns() -> None:
    full, small = mixture(50, seed=1, scale=1), mixture(50, seed=1, scale=8)
    assert small.session_first_turn.tolist() == full.session_first_turn.tolist()
    np.testing.assert_allclose(small.turn_prompt_tokens * 8, full.turn_prompt_tokens, atol=8)
    np.testing.assert_allclose(small.turn_gap_s * 8, full.turn_gap_s, atol=0.01)


def test_same_seed_same_scenario() -> None:
    one, same, other = mixture(30, seed=5), mixture(30, seed=5), mixture(30, seed=6)
    for name, value in one.to_raw().items():
        np.testing.assert_array_equal(value, same.to_raw()[name])
    assert one.turns != other.turns


def test_agents_share_their_system_prompt_and_nothing_else() -> None:
    scenario = mixture(40, seed=2, scale=1)
    owners: dict[int, set[int]] = {}
    for session in range(scenario.sessions):
        turns = scenario.session_first_turn[session : session + 2]
        for run in range(scenario.turn_first_run[turns[0]], scenario.turn_first_run[turns[1]]):
            for block in (scenario.run_first_id[run], scenario.run_first_id[run] + scenario.run_blocks[run] - 1):
                owners.setdefault(int(block), set()).add(session)
            assert scenario.run_shared[run] == (scenario.run_first_id[run] < 4_096 // 16)
    agents = set(np.flatnonzero(scenario.session_workload == 0).tolist())
    assert owners[0] == agents
    assert all(len(who) == 1 for block, who in owners.items() if block >= 4_096 // 16)


@pytest.mark.parametrize(
    ("arguments", "name"), [({"sessions": 0}, "sessions"), ({"sessions": 1, "scale": 0.5}, "scale")]
)
def test_bad_arguments(arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{name}: got "):
        mixture(**arguments)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("session_workload", lambda a: a + 3),
        ("session_workload", lambda a: a.astype(np.int32)),
        ("session_parent", lambda a: a + 1),
        ("session_after_turn", lambda a: a + 1),
        ("session_first_turn", lambda a: a[:-1]),
        ("turn_first_run", lambda a: a[::-1].copy()),
        ("turn_prompt_tokens", lambda a: a * 0),
        ("turn_output_tokens", lambda a: a[:-1]),
        ("turn_output_tokens", lambda a: a * 0),
        ("turn_gap_s", lambda a: a * np.nan),
        ("turn_gap_s", lambda a: a - 1),
        ("run_first_id", lambda a: a - 10**9),
        ("run_blocks", lambda a: a + 1),
        ("run_shared", lambda a: a[:-1]),
    ],
)
def test_a_scenario_that_does_not_fit_together_is_refused(name: str, change: Any) -> None:
    scenario = mixture(5, seed=0)
    with pytest.raises(InvalidArgument, match=name):
        dataclasses.replace(scenario, **{name: change(getattr(scenario, name))})
