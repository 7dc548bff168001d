"""Little's law, x = K / T, through the whole router: what caps by residency equalise, and caps by space do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from turnout.policies import lookup
from turnout.simulate.draft import Draft, assemble
from turnout.simulate.run import Setup, run

if TYPE_CHECKING:
    from turnout.policies import FleetView, Limits, Policy
    from turnout.simulate.scenario import Scenario

DURATION_S = 2_400.0
WARM_UP_S = 600.0


class Watched:
    """A policy that keeps the last view it was shown."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.view: FleetView

    def limits(self, view: FleetView, last: Limits) -> Limits:
        self.view = view
        return self.policy.limits(view, last)


def two_workloads(clients: tuple[int, int]) -> Scenario:
    """Sessions of about the same context, one of ten turns with gaps and one of a single turn: T differs sevenfold."""
    turns = 10
    gap_s = np.full(turns, 10.0)
    gap_s[0] = 0.0
    drafts: list[Draft] = []
    heads: dict[tuple[int, int], int] = {}
    for _ in range(60):
        for workload in (0, 1):
            for client in range(clients[workload]):
                after = heads.get((workload, client))
                heads[workload, client] = len(drafts)
                if workload == 0:
                    prompt, output = 1_600.0 + 120.0 * np.arange(turns), np.full(turns, 100.0)
                    drafts.append(Draft(0, prompt, output, gap_s, after=after))
                else:
                    drafts.append(Draft(1, np.array([1_200.0]), np.array([1_600.0]), np.zeros(1), after=after))
    share = clients[0] / sum(clients)
    return assemble(drafts, ["long", "short"], [share, 1 - share], {})


def completions(policy: str, clients: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Completions per client after the warm-up, and residency in s, of both workloads."""
    scenario, watched = two_workloads(clients), Watched(lookup(policy))
    # Every client has one session outstanding at any time, so N_w is their number; only a part of them fits.
    setup = Setup(replicas=1, kv_tokens=80_000.0, concurrency=sum(clients), duration_s=DURATION_S)
    done = run(policy, 0, scenario, setup, decide=watched)
    session, finished_s = (
        np.frombuffer(done.finishes[name], dtype) for name, dtype in (("session", np.int64), ("finished_s", np.float64))
    )
    counts = np.bincount(scenario.session_workload[session[finished_s > WARM_UP_S]], minlength=2)
    return counts / np.array(clients), watched.view.residency_s


def test_caps_by_residency_complete_in_proportion_to_what_is_unfinished() -> None:
    """Within 15 %: K of the short sessions is 5, and a fifth of one session is lost to rounding."""
    rate, residency_s = completions("misa-t", (80, 80))
    assert residency_s[0] > 5 * residency_s[1]
    assert rate[0] / rate[1] == pytest.approx(1.0, rel=0.15)


def test_caps_by_space_let_long_residencies_lag() -> None:
    """As N / T, within 30 %: long sessions are a fifth of the short ones although as many are unfinished."""
    rate, residency_s = completions("misa", (80, 80))
    assert rate[0] < 0.25 * rate[1]
    assert (rate * residency_s)[0] / (rate * residency_s)[1] == pytest.approx(1.0, rel=0.3)
