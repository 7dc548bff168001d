"""The kit finds what is wrong with a policy, and only that: shipped ones pass, planted faults get their law's name."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from turnout.errors import InvalidArgument
from turnout.policies import POLICIES, FleetView, Limits, Misa, MisaT, SessionAdmission, StaticCap
from turnout.testing import LAWS, Law, PolicyViolation, check_policy

COUNTS_SESSIONS = ["stays_within_capacity"]
PLACES_ONLY = ["round-robin", "sticky-least-loaded", "cache-aware", "dynamo-cost"]
EXEMPT = dict.fromkeys(["open", "static-cap", "concur", *PLACES_ONLY], COUNTS_SESSIONS)
"""They admit by another measure than tokens, or hold nothing back."""


@pytest.mark.parametrize("name", POLICIES)
def test_shipped_policies_keep_the_laws(name: str) -> None:
    check_policy(POLICIES[name], examples=12, exempt=EXEMPT.get(name, ()))


@pytest.mark.parametrize(
    "policy",
    [Misa(paper=True), MisaT(paper=True), MisaT(session_cap=SessionAdmission())],
    ids=["misa", "misa-t", "misa-t with a session cap"],
)
def test_the_published_variants_keep_the_laws(policy: Misa | MisaT) -> None:
    check_policy(policy, examples=7)


class OverCommits:
    def limits(self, view: FleetView, last: Limits) -> Limits:
        return Limits(ceiling_tokens=1.5 * view.kv_tokens)


class ClosesTheDoor:
    """Admits nobody: nothing runs, and nothing ever will."""

    def limits(self, view: FleetView, last: Limits) -> Limits:
        return Limits(session_cap=0)


class ForgetsAWorkload:
    """A workload without a target gets no room."""

    def limits(self, view: FleetView, last: Limits) -> Limits:
        return Limits(workload_cap=np.tile(np.where(np.isnan(view.target), 0.0, np.inf), (len(view.replicas), 1)))


class TinyCeiling:
    def limits(self, view: FleetView, last: Limits) -> Limits:
        return Limits(ceiling_tokens=0.1 * view.kv_tokens)


class Oscillates:
    """Answers an overload by closing and an idle fleet by opening, at every step."""

    def limits(self, view: FleetView, last: Limits) -> Limits:
        high = not bool(last.memory.get("high", np.array(0)))
        return Limits(session_cap=16 if high else 4, memory={"high": np.array(int(high))})


class DividesByNothing:
    """NaN where a workload has no sessions and nobody waits."""

    def limits(self, view: FleetView, last: Limits) -> Limits:
        waiting = view.held_new / view.held_new.sum()
        return Limits(workload_cap=np.tile(1 + np.floor(8 * waiting), (len(view.replicas), 1)))


class WrongShape:
    def limits(self, view: FleetView, last: Limits) -> Limits:
        return Limits(session_cap=np.ones(len(view.workloads) + 1))


class LowOverflow:
    def limits(self, view: FleetView, last: Limits) -> Limits:
        return Limits(overflow_tokens=np.minimum(view.kv_tokens, 1_000))


class Raises:
    def limits(self, view: FleetView, last: Limits) -> Limits:
        return Limits(session_cap=float(view.kv_tokens[0] // 1_000))


class ReturnsNothing:
    def limits(self, view: FleetView, last: Limits) -> None:
        return None


class Counts:
    """Remembers in itself how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def limits(self, view: FleetView, last: Limits) -> Limits:
        self.asked += 1
        return Limits(session_cap=self.asked)


class Random:
    def limits(self, view: FleetView, last: Limits) -> Limits:
        return Limits(session_cap=np.random.default_rng().uniform(8, 16, len(view.replicas)))


class RemembersByItself:
    """A memory outside of `Limits.memory`: the same for a while, and another one after a restart."""

    def __init__(self) -> None:
        self.peak = 0

    def limits(self, view: FleetView, last: Limits) -> Limits:
        self.peak = max(self.peak, int(view.held_new.max()))
        return Limits(session_cap=10 + self.peak)


class ShiftsItsMemory:
    """Writes into the array that it was given to remember."""

    def limits(self, view: FleetView, last: Limits) -> Limits:
        count = last.memory.get("count", np.zeros(1))
        count += 1
        return Limits(memory={"count": count})


class ModifiesTheView:
    def limits(self, view: FleetView, last: Limits) -> Limits:
        tokens = view.kv_tokens
        tokens.flags.writeable = True
        tokens *= 0.95
        return Limits(ceiling_tokens=tokens)


class FirstReplicaFirst:
    """The first row takes one more."""

    def limits(self, view: FleetView, last: Limits) -> Limits:
        return Limits(session_cap=8 + (np.arange(len(view.replicas)) == 0))


class FirstWorkloadFirst:
    def limits(self, view: FleetView, last: Limits) -> Limits:
        return Limits(weight=1 + 1.0 * (np.arange(len(view.workloads)) == 0))


class KnowsItsModel:
    """A reserve in tokens: right for one model, wrong for the next."""

    def limits(self, view: FleetView, last: Limits) -> Limits:
        return Limits(ceiling_tokens=np.maximum(view.kv_tokens - 4_096, 0.5 * view.kv_tokens))


class EqualParts:
    def limits(self, view: FleetView, last: Limits) -> Limits:
        return Limits(workload_cap=np.ceil(24 / len(view.workloads)))


PLANTED = [
    (OverCommits, "stays_within_capacity"),
    (ClosesTheDoor, "nobody_starves"),
    (ForgetsAWorkload, "nobody_starves"),
    (TinyCeiling, "nobody_starves"),
    (Oscillates, "settles"),
    (DividesByNothing, "answers_can_be_enforced"),
    (WrongShape, "answers_can_be_enforced"),
    (LowOverflow, "answers_can_be_enforced"),
    (Raises, "answers_can_be_enforced"),
    (ReturnsNothing, "answers_can_be_enforced"),
    (Counts, "is_a_pure_function"),
    (Random, "is_a_pure_function"),
    (RemembersByItself, "is_a_pure_function"),
    (ShiftsItsMemory, "is_a_pure_function"),
    (ModifiesTheView, "is_a_pure_function"),
    (FirstReplicaFirst, "order_of_replicas_is_no_reason"),
    (FirstWorkloadFirst, "order_of_workloads_is_no_reason"),
    (KnowsItsModel, "unit_of_tokens_is_no_reason"),
    (EqualParts, "an_empty_workload_changes_nothing"),
]


@pytest.mark.parametrize(
    ("policy", "law"), PLANTED, ids=lambda value: value if isinstance(value, str) else value.__name__
)
def test_a_planted_fault_is_found_and_its_code_does_it_again(policy: type, law: str) -> None:
    with pytest.raises(PolicyViolation) as found:
        check_policy(policy, examples=7)
    violation = found.value
    assert (violation.law, violation.numbers in str(violation), violation.code in str(violation)) == (law, True, True)
    assert len(violation.code.splitlines()) <= 40, "small"
    with pytest.raises(PolicyViolation) as again:
        exec(compile(violation.code, "printed", "exec"), {"make_policy": policy})  # noqa: S102 - what was printed
    assert again.value.law == law
    if policy is not Random:
        assert again.value.numbers == violation.numbers


def test_the_smallest_fleet_is_shown() -> None:
    with pytest.raises(PolicyViolation) as found:
        check_policy(OverCommits, examples=5, laws=[law for law in LAWS if law.name == "stays_within_capacity"])
    assert 'view = FleetView.build(["r0"], ["w0"], kv_tokens=320' in found.value.code


def test_an_instance_is_copied_for_every_scenario() -> None:
    policy = Counts()
    with pytest.raises(PolicyViolation):
        check_policy(policy, examples=5)
    assert policy.asked == 0


def test_an_instance_with_arguments_is_left_to_the_reader() -> None:
    """The script cannot know how it was made, and says so."""
    with pytest.raises(PolicyViolation) as found:
        check_policy(StaticCap(3), examples=5)
    assert "# make_policy is what check_policy was given: StaticCap <" in found.value.code
    with pytest.raises(PolicyViolation, match="stays_within_capacity: ceiling_tokens"):
        exec(found.value.code, {"make_policy": StaticCap(3)})  # noqa: S102 - what was printed


def test_a_factory_may_give_arguments() -> None:
    check_policy(lambda: StaticCap(3), examples=3, exempt=COUNTS_SESSIONS)


def test_exempted_laws_are_not_tried() -> None:
    check_policy(OverCommits, examples=5, exempt=["stays_within_capacity"])


def test_one_seed_tries_one_list_of_scenarios() -> None:
    def tried(seed: int) -> list[float]:
        seen: list[float] = []

        def note(policy: object, *, view: FleetView) -> None:
            seen.append(float(view.kv_tokens.sum()))

        law = next(law for law in LAWS if law.name == "settles")
        check_policy(OverCommits, examples=10, seed=seed, laws=[dataclasses.replace(law, check=note)])
        return seen

    assert tried(1) == tried(1) != tried(2)


def test_a_law_of_ones_own_joins_the_others() -> None:
    def leases_are_short(policy: type, *, view: FleetView) -> None:
        lease = np.max(policy().limits(view, Limits()).lease_s)
        if lease > 60:
            raise PolicyViolation("leases_are_short", f"lease_s is {lease:g}")

    view = next(law for law in LAWS if law.name == "settles").scenarios
    with pytest.raises(PolicyViolation, match=r"leases_are_short: lease_s is 600"):
        check_policy(MisaT, examples=2, laws=(*LAWS, Law(leases_are_short, view)))


def test_no_two_laws_share_a_name_and_each_says_where_it_comes_from() -> None:
    assert all(one.name != other.name for one, other in itertools.combinations(LAWS, 2))
    assert all("Source:" in (law.check.__doc__ or "") for law in LAWS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"examples": 0}, "examples: got 0"),
        ({"examples": True}, "examples: got True"),
        ({"exempt": ["gravity"]}, "exempt: got 'gravity', accepted are answers_can_be_enforced, "),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        check_policy(MisaT, **arguments)


@pytest.mark.parametrize("given", [object(), object, 3, lambda: None, StaticCap.__init__])
def test_what_is_no_policy_is_refused(given: object) -> None:
    with pytest.raises(InvalidArgument, match="accepted is a "):
        check_policy(given, examples=1)
