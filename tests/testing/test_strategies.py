"""What the strategies make is what a router could report, and reaches the corners that break policies."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnout.policies import FleetView
from turnout.router import Router
from turnout.testing.strategies import BLOCK, fleet_views, fleets, successive_views, workloads
from turnout.testing.tables import (
    LIMIT_SHAPES,
    VIEW_SHAPES,
    alike,
    columns,
    reordered,
    rescaled,
    with_empty_workload,
)
from turnout.testing.violation import _Writer

if TYPE_CHECKING:
    from turnout.config import Replica, Workload

EMPTY = FleetView.build(["r0"], ["w0"])


@given(view=fleet_views())
@settings(max_examples=40)
def test_views_are_consistent(view: FleetView) -> None:
    for array in columns(view).values():
        assert not array.flags.writeable
        assert not (array.dtype.kind == "f" and (array < 0).any())
    assert (view.commit_tokens >= view.charge_tokens).all()
    assert (view.charge_tokens <= view.workload_tokens.sum(axis=1)).all()
    assert (view.charge_tokens >= view.workload_tokens.max(axis=1)).all()
    assert (view.idle_tokens <= view.charge_tokens).all()
    assert (view.expired_tokens <= view.idle_tokens).all()
    assert (view.resident_tokens <= view.kv_tokens).all()
    assert (view.held_paused <= view.paused).all()
    assert ((view.workload_tokens > 0) == (view.sessions > 0)).all()
    assert (view.running_turns == view.sessions_running.sum(axis=1)).all()
    for name in ("charge_tokens", "commit_tokens", "idle_tokens", "expired_tokens", "workload_tokens"):
        assert not (getattr(view, name) % BLOCK).any()
    assert np.isnan(view.target).all() or view.target.sum() == pytest.approx(1)


CORNERS = {
    "one replica": lambda view: len(view.replicas) == 1,
    "many workloads": lambda view: len(view.workloads) >= 4,
    "unknown capacity": lambda view: np.isinf(view.kv_tokens).any() and np.isfinite(view.kv_tokens).any(),
    "unequal capacity": lambda view: len(set(view.kv_tokens[np.isfinite(view.kv_tokens)])) > 1,
    "cold start": lambda view: view.sessions.any() and not view.context_tokens.any() and not view.residency_s.any(),
    "no traffic": lambda view: not view.sessions.any() and not view.held_new.any() and view.context_tokens.any(),
    "an empty workload": lambda view: not view.sessions[:, -1].any() and view.sessions[:, 0].any(),
    "over capacity": lambda view: (view.charge_tokens > view.kv_tokens).any(),
    "everybody waits": lambda view: view.held_new.all() and not view.sessions.any(),
    "a closed replica": lambda view: not view.accepting.all(),
    "no target": lambda view: np.isnan(view.target).all(),
}


def test_views_reach_the_corners() -> None:
    missing = set(CORNERS)

    @settings(max_examples=200, derandomize=True, database=None)
    @given(view=fleet_views())
    def look(view: FleetView) -> None:
        missing.difference_update([name for name in missing if CORNERS[name](view)])

    look()
    assert not missing


@given(fleet=fleets(), kinds=workloads())
@settings(max_examples=40)
def test_a_router_accepts_every_fleet_and_reports_the_same_columns(fleet: list[Replica], kinds: list[Workload]) -> None:
    view = Router(fleet, kinds).view(now=0.0)
    assert view.kv_tokens.tolist() == pytest.approx([replica.kv_tokens for replica in fleet])
    assert {name: array.dtype for name, array in columns(view).items()} == {
        name: array.dtype for name, array in columns(EMPTY).items()
    }


@given(views=successive_views(count=3))
@settings(max_examples=40)
def test_successive_views_are_of_one_fleet(views: list[FleetView]) -> None:
    assert len({(view.replicas, view.workloads, tuple(view.kv_tokens)) for view in views}) == 1
    assert [view.step - views[0].step for view in views] == [0, 1, 2]


@given(view=fleet_views())
@settings(max_examples=40)
def test_a_view_is_what_its_code_makes(view: FleetView) -> None:
    writer = _Writer()
    code = writer.write(view)
    scope: dict[str, object] = {}
    exec("\n".join([*writer.imports(), f"made = {code}"]), scope)  # noqa: S102 - what was printed
    made = scope["made"]
    assert isinstance(made, FleetView)
    for entry in dataclasses.fields(FleetView):
        np.testing.assert_array_equal(getattr(made, entry.name), getattr(view, entry.name))


@given(view=fleet_views(), data=st.data())
@settings(max_examples=40)
def test_reordering_twice_is_nothing(view: FleetView, data: st.DataObject) -> None:
    for axis, names in (("R", view.replicas), ("W", view.workloads)):
        order = data.draw(st.permutations(range(len(names))))
        back = reordered(reordered(view, order, axis), np.argsort(order).tolist(), axis)
        for name, array in columns(view).items():
            np.testing.assert_array_equal(array, getattr(back, name))


def test_every_column_and_field_takes_part() -> None:
    assert set(VIEW_SHAPES) == {entry.name for entry in dataclasses.fields(FleetView)} - {
        "step",
        "now_s",
        "elapsed_s",
        "replicas",
        "workloads",
    }
    assert (VIEW_SHAPES["kv_tokens"], VIEW_SHAPES["target"], VIEW_SHAPES["sessions_idle"]) == ("R", "W", "RW")
    assert (LIMIT_SHAPES["bypass"], LIMIT_SHAPES["lease_s"], LIMIT_SHAPES["weight"]) == ("", "RW", "W")


def test_tables_by_hand() -> None:
    view = FleetView.build(["a", "b", "c"], ["x", "y"], kv_tokens=[10, 20, 10], held_new=[3, 3], prefill_tokens_per_s=7)
    assert (alike([view], "R"), alike([view], "W")) == ([[0, 2], [1]], [[0, 1]])
    scaled = rescaled(view, 2)
    assert (scaled.kv_tokens.tolist(), scaled.held_new.tolist()) == ([20, 40, 20], [3, 3])
    assert scaled.prefill_tokens_per_s.tolist() == [14, 14, 14]
    wide = with_empty_workload(view, "z", 5)
    assert (wide.workloads, wide.held_new.tolist(), wide.residency_s.tolist()) == (
        ("x", "y", "z"),
        [3, 3, 0],
        [0, 0, 5],
    )
