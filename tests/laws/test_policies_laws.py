"""Laws of every shipped policy, over generated fleets."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnout.policies import (
    BlockTime,
    Concur,
    FleetView,
    LeaseGate,
    Limits,
    Misa,
    MisaT,
    Open,
    Policy,
    SessionAdmission,
    StaticCap,
)
from turnout.policies.misa import CEILING_SHARE, unfinished

POLICIES = [
    Open(),
    StaticCap(5),
    BlockTime(),
    BlockTime(2.0, reserve_growth=True),
    LeaseGate(),
    Misa(),
    Misa(paper=True),
    MisaT(),
    MisaT(paper=True),
    MisaT(session_cap=SessionAdmission()),
    SessionAdmission(),
    Concur(),
]
QUOTAS = [policy for policy in POLICIES if isinstance(policy, Misa | MisaT)]

every_policy = pytest.mark.parametrize("policy", POLICIES, ids=lambda p: f"{type(p).__name__}-{vars(p)}")
every_quota = pytest.mark.parametrize("policy", QUOTAS, ids=lambda p: f"{type(p).__name__}-{vars(p)}")


@st.composite
def views(draw: st.DrawFn, *, known: bool = False, replicas: int | None = None) -> FleetView:
    """Any fleet: empty ones, unknown capacities, unknown estimates, nobody or everybody waiting."""
    r = draw(st.integers(0, 4)) if replicas is None else replicas
    w = draw(st.integers(1, 4))
    count = st.integers(0, 60)
    size = st.integers(1, 200_000) if known else st.one_of(st.just(0), st.integers(1, 200_000))
    capacity = st.integers(0, 3_000_000) if known else st.one_of(st.just(np.inf), st.integers(0, 3_000_000))

    def column(values: st.SearchStrategy[object], *shape: int) -> np.ndarray:
        n = int(np.prod(shape))
        return np.array(draw(st.lists(values, min_size=n, max_size=n))).reshape(shape)

    held = column(count, w)
    return FleetView.build(
        draw(st.permutations([f"r{i}" for i in range(r)])),
        [f"w{i}" for i in range(w)],
        kv_tokens=column(capacity, r),
        accepting=True if known else column(st.booleans(), r),
        sessions_running=column(count, r, w),
        sessions_idle=column(count, r, w),
        held_new=held,
        held_paused=held // 2,
        paused=held,
        context_tokens=column(size, w),
        residency_s=column(size, w),
    )


def answers(policy: Policy, first: FleetView, second: FleetView) -> list[Limits]:
    """Two steps, so that what the policy remembers takes part."""
    once = policy.limits(first, Limits())
    return [once, policy.limits(second, once)]


@every_policy
@given(first=views(), second=views())
def test_the_answer_can_be_enforced_for_every_fleet(policy: Policy, first: FleetView, second: FleetView) -> None:
    for view, limits in zip((first, second), answers(policy, first, second), strict=True):
        raw = limits.to_raw(view)
        assert not any(np.isnan(value).any() for value in raw.values())


@every_policy
@given(view=views(), data=st.data())
def test_the_order_of_replicas_does_not_matter(policy: Policy, view: FleetView, data: st.DataObject) -> None:
    order = data.draw(st.permutations(view.replicas))
    rows = [view.replicas.index(name) for name in order]
    later = dataclasses.replace(view, context_tokens=1.01 * view.context_tokens)
    for plain, permuted in zip(
        answers(policy, view, later), answers(policy, view.reorder(order), later.reorder(order)), strict=True
    ):
        a, b = plain.to_raw(view), permuted.to_raw(view.reorder(order))
        for name in a:
            per_replica = name in {"session_cap", "workload_cap", "ceiling_tokens", "overflow_tokens", "lease_s"}
            np.testing.assert_array_equal(a[name][rows] if per_replica else a[name], b[name])


@every_quota
@given(view=views(), factor=st.floats(1e-3, 1e3))
def test_the_unit_of_tokens_does_not_matter(policy: Policy, view: FleetView, factor: float) -> None:
    scaled = dataclasses.replace(view, kv_tokens=view.kv_tokens * factor, context_tokens=view.context_tokens * factor)
    for plain, other in zip(answers(policy, view, view), answers(policy, scaled, scaled), strict=True):
        np.testing.assert_array_equal(plain.workload_cap, other.workload_cap)
        np.testing.assert_allclose(np.multiply(plain.ceiling_tokens, factor), other.ceiling_tokens)


@every_quota
@given(view=views())
def test_a_workload_without_sessions_changes_nothing(policy: Policy, view: FleetView) -> None:
    empty = {"sessions_running", "sessions_idle", "held_new", "held_paused", "paused"}
    columns = {}
    for entry in dataclasses.fields(view):
        value = getattr(view, entry.name)
        if isinstance(value, np.ndarray):
            w = len(view.workloads)
            if value.shape[-1:] == (w,) and entry.name in {*empty, "context_tokens", "residency_s"}:
                extra = np.full((*value.shape[:-1], 1), 0 if entry.name in empty else 777)
                value = np.concatenate([value, extra], axis=-1)
            elif value.shape == (w,) and entry.name not in {"kv_tokens", "accepting"}:
                continue
            if entry.name in {*empty, "context_tokens", "residency_s", "kv_tokens", "accepting"}:
                columns[entry.name] = value
    wider = FleetView.build(view.replicas, [*view.workloads, "zz"], **columns)
    caps, more = policy.limits(view, Limits()).workload_cap, policy.limits(wider, Limits()).workload_cap
    np.testing.assert_array_equal(caps, more[:, :-1])


@every_quota
@given(view=views(known=True, replicas=3))
def test_caps_never_exceed_what_fits(policy: Policy, view: FleetView) -> None:
    # What the caps admit, at mean size: the capacity, beyond it only the one session that nobody is refused.
    cap = policy.limits(view, Limits()).workload_cap
    busy = (view.sessions.sum(axis=1) + view.held_new.sum() + view.paused.sum()) > 0
    if not policy.paper:
        # Where everybody fits beside each other, nothing is scarce: each workload may take the whole replica.
        roomy = unfinished(view) @ view.context_tokens <= CEILING_SHARE * view.kv_tokens
        whole = np.maximum(np.floor(view.kv_tokens[:, None] / view.context_tokens + 1e-6), 1)
        assert (cap <= whole)[roomy].all()
        busy &= ~roomy
    beyond_one = np.where(cap > 1, cap, 0) @ view.context_tokens
    assert (beyond_one[busy] <= view.kv_tokens[busy] * (1 + 1e-6) + 1e-6 * view.context_tokens.sum()).all()


@every_quota
@given(view=views(known=True, replicas=3))
def test_every_workload_may_run_somewhere(policy: Policy, view: FleetView) -> None:
    assert (policy.limits(view, Limits()).workload_cap.max(axis=0) >= 1).all()


@every_quota
@given(view=views())
def test_a_policy_is_a_function_of_its_arguments(policy: Policy, view: FleetView) -> None:
    for one, other in zip(answers(policy, view, view), answers(policy, view, view), strict=True):
        np.testing.assert_array_equal(one.workload_cap, other.workload_cap)
        assert one.memory.keys() == other.memory.keys()
