"""Adaptive caps: session admission and CONCUR, by hand-computed numbers, and what their protections are for."""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest

from turnout.errors import InvalidArgument
from turnout.policies import Concur, FleetView, Limits, Misa, MisaT, Policy, SessionAdmission
from turnout.policies.hits import EVIDENCE_TURNS

NONE = Limits()


def view(sessions: int, turns: int = 0, missing: float = 0.0, **columns: object) -> FleetView:
    """One replica of 1,000,000 tokens whose sessions end at 50,000; 1,000 tokens were forecast per continuation."""
    values = {
        "kv_tokens": 1_000_000,
        "final_tokens": 50_000,
        "residency_s": 200.0,
        "held_new": 40,
        "sessions_idle": sessions,
        "reported_turns": turns,
        "forecast_tokens": 1_000.0 * turns,
        "missing_tokens": missing,
        **columns,
    }
    return FleetView.build(["r0"], ["agent"], **values)


def cap(limits: Limits) -> float:
    return float(np.asarray(limits.session_cap)[0])


class TestSessionAdmission:
    """One session = 50,000 tokens; ceiling 950,000: a base of 19."""

    POLICY = SessionAdmission(gap=0.1, cut=0.8, most=1.0)

    def test_the_base_is_the_ceiling_over_the_final_length(self) -> None:
        limits = self.POLICY.limits(view(0), NONE)
        assert cap(limits) == 19
        assert np.asarray(limits.ceiling_tokens).tolist() == [950_000]
        assert limits.lease_s == 600

    def test_lengths_are_averaged_by_unfinished_sessions(self) -> None:
        # (30 * 50,000 + 10 * 10,000) / 40 = 40,000; a workload without a length has no part in it.
        mixed = FleetView.build(
            ["r0", "r1"],
            ["agent", "rlhf", "new"],
            kv_tokens=[1_000_000, 500_000],
            held_new=[30, 4, 9],
            paused=[0, 4, 0],
            sessions_running=[[0, 2, 0], [0, 0, 0]],
            final_tokens=[50_000, 10_000, 0],
        )
        assert np.asarray(self.POLICY.limits(mixed, NONE).session_cap).tolist() == [23, 11]

    def test_contexts_stand_for_lengths_before_anybody_finished(self) -> None:
        assert cap(self.POLICY.limits(view(0, final_tokens=0, context_tokens=25_000), NONE)) == 38

    @pytest.mark.parametrize("columns", [{"final_tokens": 0}, {"kv_tokens": math.inf}, {"held_new": 0}])
    def test_nothing_known_is_no_cap(self, columns: dict[str, float]) -> None:
        assert cap(self.POLICY.limits(view(0, **columns), NONE)) == math.inf

    def test_a_base_below_one_session_admits_one(self) -> None:
        assert cap(self.POLICY.limits(view(0, final_tokens=5_000_000), NONE)) == 1

    def test_a_cut_is_confirmed_and_taken_from_what_is_admitted(self) -> None:
        last = self.POLICY.limits(view(19), NONE)
        last = self.POLICY.limits(view(19, 32, 4_800), last)
        assert cap(last) == 19, "15 % missing, once"
        last = self.POLICY.limits(view(19, 40, 6_000), last)
        assert cap(last) == 19, "8 more are no judgement"
        last = self.POLICY.limits(view(19, 64, 9_600), last)
        assert cap(last) == 15, "twice: 0.8 * 19 = 15.2"
        few = self.POLICY.limits(view(10, 64, 9_600), last)
        assert cap(few) == 15, "what was judged is not judged again"

    def test_a_queue_confirms_at_once(self) -> None:
        last = self.POLICY.limits(view(19), NONE)
        assert cap(self.POLICY.limits(view(19, 32, 4_800, backlog_tokens=200_001), last)) == 15, (
            "10 s at 20,000 a second"
        )
        assert cap(self.POLICY.limits(view(19, 32, 4_800, backlog_tokens=200_000), last)) == 19

    def test_what_was_lost_between_turns_counts_as_missing(self) -> None:
        # 32 of 32 thousand found, but 8 thousand were evicted before: 32 / 40 = 0.8.
        last = self.POLICY.limits(view(19), NONE)
        last = self.POLICY.limits(view(19, 16, lost_tokens=8_000), last)
        last = self.POLICY.limits(view(19, 32, backlog_tokens=300_000), last)
        assert cap(last) == 15

    def test_a_small_gap_is_no_reason(self) -> None:
        last = self.POLICY.limits(view(19), NONE)
        for turns in (32, 64, 96, 128):
            last = self.POLICY.limits(view(19, turns, 90.0 * turns), last)
        assert cap(last) == 19, "9 % missing, within the dead band of 10 %"

    def test_a_workload_whose_hits_are_low_is_not_cut_for_ever(self) -> None:
        last, caps = self.POLICY.limits(view(19), NONE), []
        for turns in range(32, 32 * 120, 32):
            last = self.POLICY.limits(view(int(cap(last)), turns, 200.0 * turns, elapsed_s=25.0), last)
            caps.append(cap(last))
        assert min(caps) < 5
        assert caps[-1] > 15, "the reference has come down to 0.8 + the gap, and the cap goes up again"

    def test_one_session_per_half_residency_comes_back_while_the_cap_binds(self) -> None:
        last = self.POLICY.limits(view(19), NONE)
        for turns in (32, 64):
            last = self.POLICY.limits(view(19, turns, 150.0 * turns), last)
        assert cap(last) == 15
        healthy = self.POLICY.limits(view(15, 96, 9_600, elapsed_s=0.0), last)
        # 15.2 and half a residency of 100 s.
        assert cap(self.POLICY.limits(view(15, 96, 9_600, elapsed_s=79.0), healthy)) == 15
        assert cap(self.POLICY.limits(view(15, 96, 9_600, elapsed_s=81.0), healthy)) == 16
        assert cap(self.POLICY.limits(view(14, 96, 9_600, elapsed_s=500.0), healthy)) == 15, "it does not bind"
        assert cap(self.POLICY.limits(view(15, 96, 9_600, elapsed_s=500.0, held_new=0), healthy)) == 15, "nobody waits"
        assert cap(self.POLICY.limits(view(15, 96, 9_600, elapsed_s=5_000.0), healthy)) == 19, "at most the base"

    def test_a_replica_keeps_its_cap_by_name(self) -> None:
        last = self.POLICY.limits(view(19), NONE)
        for turns in (32, 64):
            last = self.POLICY.limits(view(19, turns, 150.0 * turns), last)
        other = FleetView.build(
            ["new", "r0"], ["agent"], kv_tokens=1_000_000, final_tokens=50_000, sessions_idle=15, reported_turns=[0, 64]
        )
        assert np.asarray(self.POLICY.limits(other, last).session_cap).tolist() == [19, 15]

    @pytest.mark.parametrize("policy", [Misa, MisaT])
    def test_quotas_take_the_cap_beside_them(self, policy: type[Misa | MisaT]) -> None:
        fleet = view(19, context_tokens=40_000)
        plain, both = policy(), policy(session_cap=self.POLICY)
        last, alone = both.limits(fleet, NONE), self.POLICY.limits(fleet, NONE)
        for turns in (32, 64):
            fleet = view(19, turns, 150.0 * turns, context_tokens=40_000)
            last, alone = both.limits(fleet, last), self.POLICY.limits(fleet, alone)
        assert cap(last) == cap(alone) == 15
        assert np.array_equal(last.workload_cap, plain.limits(fleet, NONE).workload_cap)
        assert plain.limits(fleet, NONE).session_cap is None
        with pytest.raises(InvalidArgument, match="session_cap: got 5, accepted is a SessionAdmission or None"):
            policy(session_cap=5)

    @pytest.mark.parametrize(
        "arguments", [{"cut": 1}, {"cut": 0}, {"most": 0}, {"most": math.inf}, {"gap": 1.1}, {"guarded": 1}]
    )
    def test_bad_arguments_are_named(self, arguments: dict[str, float]) -> None:
        with pytest.raises(InvalidArgument, match=f"{next(iter(arguments))}: got"):
            SessionAdmission(**arguments)


class TestConcur:
    POLICY = Concur(low=0.7, high=0.9, hit=0.8, step=2, cut=0.5, first=10, period_s=10)

    def step(
        self, last: Limits, sessions: int, charge: float, turns: int = 0, missing: float = 0.0, **more: object
    ) -> Limits:
        columns = {"charge_tokens": charge, "elapsed_s": 10.0, **more}
        return self.POLICY.limits(view(sessions, turns, missing, **columns), last)

    def test_it_grows_below_the_low_mark_while_it_binds(self) -> None:
        last = self.step(NONE, 10, 699_000)
        assert (cap(last), last.shed) == (12, True)
        assert cap(self.step(last, 12, 701_000)) == 12, "between the marks it stays"
        assert cap(self.step(last, 11, 100_000)) == 12, "it does not bind"
        assert cap(self.step(last, 12, 100_000, held_new=0)) == 12, "nobody waits"
        assert cap(self.step(last, 12, 100_000, elapsed_s=9.0)) == 12, "not before the period is over"
        assert cap(self.step(last, 12, 100_000)) == 14

    def test_high_usage_and_low_hits_cut_it(self) -> None:
        start = self.step(NONE, 10, 800_000)
        assert cap(self.step(start, 10, 901_000, 32, 6_000)) == 10, "81 % were there"
        cut = self.step(start, 10, 901_000, 32, 7_000)
        assert cap(cut) == 5
        assert cap(self.step(start, 10, 899_000, 32, 7_000)) == 10, "usage is not above its mark"
        assert cap(self.step(cut, 5, 950_000, 32, 7_000)) == 5, "what was judged is not judged again"
        assert cap(self.step(cut, 6, 950_000, 64, 20_000)) == 5, "its sessions have not left yet"
        assert cap(self.step(cut, 5, 950_000, 64, 20_000)) == 2

    def test_it_never_closes(self) -> None:
        last, turns = self.step(NONE, 10, 800_000), 0
        for _ in range(8):
            turns += EVIDENCE_TURNS
            last = self.step(last, int(cap(last)), 950_000, turns, 1_000.0 * turns)
        assert cap(last) == 1

    @pytest.mark.parametrize(
        "arguments",
        [
            {"low": -1},
            {"high": 2},
            {"hit": math.nan},
            {"step": 0},
            {"cut": 1},
            {"first": 0.5},
            {"period_s": 0},
            {"guarded": 0},
        ],
    )
    def test_bad_arguments_are_named(self, arguments: dict[str, float]) -> None:
        with pytest.raises(InvalidArgument, match=f"{next(iter(arguments))}: got"):
            Concur(**arguments)


class Plant:
    """A replica in a closed loop: whoever is admitted stays for a residency; above `fits` sessions hits are lost.

    A cap admits at once and evicts nobody, or pauses who is above it at the end of a turn where it sheds.
    """

    def __init__(self, policy: Policy, *, fits: int, residency_s: float, seed: int) -> None:
        self.policy, self.fits, self.residency_s = policy, fits, residency_s
        self.rng = np.random.default_rng(seed)
        self.now = 0.0
        self.leaves: list[float] = []
        self.turns = self.missing = 0.0
        self.last = NONE

    def run(self, steps: int, step_s: float, length: object = None) -> np.ndarray:
        """Sessions admitted at every step; `length()` is the final length that the view shows."""
        told = []
        for _ in range(steps):
            self.now += step_s
            while self.leaves and self.leaves[0] <= self.now:
                heapq.heappop(self.leaves)
            sessions = len(self.leaves)
            # Each session asks once in 10 s; above what fits, as much as is too much is missing.
            turns = sessions * step_s / 10
            self.turns += turns
            self.missing += 1_000 * turns * min(1.0, 3 * max(0.0, sessions - self.fits) / self.fits)
            seen = view(
                sessions,
                int(self.turns),
                self.missing,
                charge_tokens=1_000_000 * min(1.0, sessions / self.fits),
                elapsed_s=step_s,
                residency_s=self.residency_s,
                final_tokens=50_000 if length is None else length(),
            )
            self.last = self.policy.limits(seen, self.last)
            allowed = int(cap(self.last))
            while len(self.leaves) < allowed:
                heapq.heappush(self.leaves, self.now + self.residency_s * self.rng.exponential())
            if self.last.shed:
                self.leaves = self.leaves[: max(allowed, 1)]
                heapq.heapify(self.leaves)
            told.append(len(self.leaves))
        return np.array(told)


class TestStability:
    """Ratchet and wind-up: both with the protection off, neither with it on."""

    @staticmethod
    def ratchet(*, guarded: bool) -> float:
        """Mean of the admitted, with a tenth of white noise in the length of sessions; the right cap is 19."""
        policy = SessionAdmission(most=1.0, guarded=guarded)
        plant = Plant(policy, fits=1_000, residency_s=1_000, seed=1)
        lengths = np.random.default_rng(2)
        return float(plant.run(2_000, 5.0, lambda: 50_000 * lengths.normal(1.0, 0.1))[400:].mean())

    def test_noise_does_not_ratchet_the_cap_of_session_admission(self) -> None:
        assert self.ratchet(guarded=False) > 1.15 * 19, "the running maximum of the noise"
        assert self.ratchet(guarded=True) < 1.05 * 19

    @staticmethod
    def wound_up(policy: Policy) -> np.ndarray:
        """The admitted, where 20 sessions fit and every session above that costs hits; residency 300 s."""
        return Plant(policy, fits=20, residency_s=300, seed=3).run(2_400, 5.0)[400:]

    def test_session_admission_does_not_wind_down(self) -> None:
        naive = self.wound_up(SessionAdmission(gap=0.1, cut=0.8, most=2.0, guarded=False))
        steady = self.wound_up(SessionAdmission(gap=0.1, cut=0.8, most=2.0))
        assert naive.min() <= 0.65 * 20, "cut again and again before anybody could leave"
        assert steady.min() >= 0.75 * 20
        assert abs(steady.mean() - 20) < abs(naive.mean() - 20)

    def test_concur_does_not_wind_down_either(self) -> None:
        plain = {"low": 0.95, "high": 0.98, "hit": 0.9, "step": 1, "cut": 0.8, "first": 30}
        naive = self.wound_up(Concur(guarded=False, **plain))
        steady = self.wound_up(Concur(**plain))
        assert (naive.min(), naive.max()) == (16, 22), "up past what fits, and 0.8 of that"
        assert set(steady.tolist()) == {19}, "19 of 20 are at the low mark"

    @pytest.mark.parametrize(("guarded", "window"), [(True, 10), (False, 10 + 2 * 50)])
    def test_a_window_that_does_not_bind_stays(self, guarded: bool, window: int) -> None:
        # An idle hour must not open the window for the burst after it.
        policy, last = Concur(first=10, step=2, guarded=guarded), NONE
        for _ in range(50):
            last = policy.limits(view(3, held_new=0, charge_tokens=150_000, elapsed_s=10.0), last)
        assert cap(last) == window
