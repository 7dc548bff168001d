"""Look for a scenario in which a policy breaks a law, make it small, and print it as code."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from turnout.errors import InvalidArgument
from turnout.testing import laws as views
from turnout.testing import running
from turnout.testing.strategies import event_sequences, fleet_views, fleets, successive_views, workloads
from turnout.testing.violation import PolicyViolation, code_for

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from turnout.testing.running import Visit
    from turnout.testing.subject import PolicySource

Scenario = dict[str, Any]

SHRINK_ATTEMPTS: Final = 150
"""Scenarios tried to make a violation smaller: what is found after a few hundred reads no better."""


@dataclass(frozen=True)
class Law:
    """A law, and the scenarios to try it on.

    Attributes:
        check: Called with the policy and a scenario as keywords; raises `PolicyViolation` where the policy breaks the
            law. Its name is the name of the law.
        scenarios: Strategy for the keywords.
    """

    check: Callable[..., None]
    scenarios: st.SearchStrategy[Scenario]

    @property
    def name(self) -> str:
        """Its name, for `exempt`."""
        return self.check.__name__


class _SmallEnough(BaseException):
    """Ends the search for a smaller scenario. Hypothesis would take an `Exception` for a finding."""


def _no_replicas() -> st.SearchStrategy[Any]:
    return st.just([])


@st.composite
def _any_two(draw: st.DrawFn) -> Scenario:
    """Two views: of one fleet, or of fleets that have nothing in common; one may be without replicas."""
    one = st.one_of(fleet_views(), fleet_views(fleet=_no_replicas()))
    return {"views": draw(st.one_of(successive_views(), st.lists(one, min_size=1, max_size=2)))}


@st.composite
def _order(draw: st.DrawFn, axis: str) -> Scenario:
    views = draw(successive_views(fleet=fleets(replicas=(2, 5)) if axis == "R" else None))
    rows = list(range(len(views[0].replicas if axis == "R" else views[0].workloads)))
    # These two generate every order; one draw shrinks faster than a permutation.
    return {
        "views": views,
        "order": draw(st.sampled_from([rows[::-1], [*rows[1:], *rows[:1]], [*rows[1::-1], *rows[2:]]])),
    }


@st.composite
def _loop(draw: st.DrawFn) -> Scenario:
    machines, kinds = draw(fleets(replicas=(1, 3), kv_blocks=(20, 400))), draw(workloads(number=(1, 3)))
    most = int(min([4_000.0, *(machine.kv_tokens for machine in machines)])) // 4
    tokens, turns = st.integers(1, most), st.integers(1, 2)
    others = st.sampled_from([kind.name for kind in kinds])
    everyone: list[Visit] = [(kind.name, draw(tokens), draw(turns)) for kind in kinds]
    more = draw(st.lists(st.tuples(others, tokens, turns), max_size=12))
    return {"fleet": machines, "workloads": kinds, "sessions": [*everyone, *more]}


@st.composite
def _histories(draw: st.DrawFn) -> Scenario:
    machines, kinds = draw(fleets(replicas=(1, 3), kv_blocks=(20, 200))), draw(workloads(number=(1, 3)))
    return {"fleet": machines, "workloads": kinds, "history": draw(event_sequences(fleet=machines, classes=kinds))}


LAWS: Final[tuple[Law, ...]] = (
    Law(views.answers_can_be_enforced, _any_two()),
    Law(views.is_a_pure_function, st.fixed_dictionaries({"views": successive_views()})),
    Law(views.stays_within_capacity, st.fixed_dictionaries({"view": fleet_views()})),
    Law(views.settles, st.fixed_dictionaries({"view": fleet_views()})),
    Law(views.order_of_replicas_is_no_reason, _order("R")),
    Law(views.order_of_workloads_is_no_reason, _order("W")),
    Law(views.unit_of_tokens_is_no_reason, st.fixed_dictionaries({"view": fleet_views()})),
    Law(
        views.an_empty_workload_changes_nothing,
        st.fixed_dictionaries({"views": successive_views(), "estimate": st.sampled_from([0, 777])}),
    ),
    Law(running.nobody_starves, _loop()),
    Law(running.router_stays_sound, _histories()),
)
"""Every law of a policy, cheap ones that others rest on first."""


def check_policy(
    policy: PolicySource,
    *,
    examples: int = 100,
    seed: int = 0,
    exempt: Collection[str] = (),
    laws: Sequence[Law] = LAWS,
) -> None:
    """Look for a fleet, or a history of one, in which a policy breaks a law.

    Each law is tried on generated scenarios; the first one that fails is shrunk to a small one and raised, written as
    Python code that fails in the same way. The same seed tries the same scenarios.

    Args:
        policy: A policy, or a class or function that makes one without arguments. A policy is copied for every
            scenario.
        examples: Scenarios per law, at least 1. 100 find coarse mistakes in seconds; 2,000 before a release.
        seed: Seed of the scenarios.
        exempt: Names of laws that the policy breaks on purpose; say why beside it.
        laws: The laws; `(*LAWS, Law(mine, scenarios))` adds one.

    Raises:
        PolicyViolation: The policy breaks a law.
        InvalidArgument: An argument is out of range, or no law has an exempted name.

    Example:
        >>> from turnout.policies import MisaT, StaticCap
        >>> check_policy(MisaT, examples=5)
        >>> check_policy(StaticCap(8), examples=5, exempt=["stays_within_capacity"])  # caps sessions, not tokens
    """
    if isinstance(examples, bool) or not isinstance(examples, int) or examples < 1:
        raise InvalidArgument(f"examples: got {examples!r}, accepted is a whole number >= 1")
    names = [law.name for law in laws]
    unknown = sorted(set(exempt) - set(names))
    if unknown:
        raise InvalidArgument(f"exempt: got {unknown[0]!r}, accepted are {', '.join(names)}")
    for law in laws:
        if law.name not in exempt:
            _hunt(law, policy, examples, seed)


def _hunt(law: Law, policy: PolicySource, examples: int, seed: int) -> None:
    """Try one law; raise the smallest violation found."""
    found: list[PolicyViolation] = []
    tried_since = 0

    @seeded(seed)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        verbosity=Verbosity.quiet,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(scenario=law.scenarios)
    def attempt(scenario: Scenario) -> None:
        nonlocal tried_since
        tried_since += bool(found)
        if tried_since > SHRINK_ATTEMPTS:
            raise _SmallEnough
        asked = copy.deepcopy(scenario)  # to print what was asked, whatever a policy does to its view
        try:
            law.check(policy, **scenario)
        except PolicyViolation as violation:
            code = code_for(law.check, policy, asked)
            found.append(PolicyViolation(violation.law, violation.numbers, code))
            raise

    try:
        attempt()
    except (PolicyViolation, Flaky, _SmallEnough):
        # Flaky: the policy is no function of its arguments, and what failed once did not fail again.
        if not found:
            raise
    if found:
        raise min(reversed(found), key=lambda violation: len(violation.code)) from None
