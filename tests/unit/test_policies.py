"""Policies: golden numbers, validation of limits, lookup by name."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from turnout.errors import InvalidArgument, PolicyError, UnknownPolicy
from turnout.policies import BlockTime, FleetView, LeaseGate, Limits, Misa, MisaT, Open, Policy, StaticCap, lookup
from turnout.policies.misa import unfinished

NONE = Limits()


def mixed(kv_tokens: float = 1_000_000, **columns: object) -> FleetView:
    """The three classes of the first golden scenario, all of them waiting."""
    values = {
        "held_new": [30, 20, 50],
        "context_tokens": [40_000, 60_000, 8_000],
        "residency_s": [600, 900, 120],
        **columns,
    }
    return FleetView.build(["r0"], ["agent", "rlvr", "rlhf"], kv_tokens=kv_tokens, **values)


def g10() -> FleetView:
    return mixed(1_900_000, held_new=[30, 20, 10], context_tokens=[60_000, 40_000, 5_000], residency_s=[600, 900, 120])


class TestGoldenScenarios:
    def test_misa_and_misa_t_of_scenario_4(self) -> None:
        assert Misa().limits(mixed(), NONE).workload_cap.tolist() == [[10, 7, 17]]
        assert MisaT().limits(mixed(), NONE).workload_cap.tolist() == [[9, 9, 3]]

    def test_quotas_of_g10(self) -> None:
        assert Misa().limits(g10(), NONE).workload_cap.tolist() == [[21, 14, 7]]
        assert MisaT().limits(g10(), NONE).workload_cap.tolist() == [[18, 18, 1]]

    def test_completions_of_misa_t_are_in_proportion_to_the_sessions(self) -> None:
        # Little's law: x_w = K_w / T_w. A fleet so large that rounding is below 0.1 %.
        view = mixed(1e12, held_new=[30_000_000, 20_000_000, 50_000_000])
        rate = MisaT().limits(view, NONE).workload_cap[0] / view.residency_s / view.held_new
        assert rate == pytest.approx(rate[0], rel=1e-3)

    def test_completions_of_misa_lag_by_residency(self) -> None:
        view = mixed(1e12, held_new=[30_000_000, 20_000_000, 50_000_000])
        rate = Misa().limits(view, NONE).workload_cap[0] / view.residency_s / view.held_new
        assert rate * view.residency_s == pytest.approx(rate[0] * 600, rel=1e-3)

    @pytest.mark.parametrize("paper", [True, False])
    def test_four_workloads_on_a_small_replica_get_one_session_each(self, paper: bool) -> None:
        view = FleetView.build(["r0"], ["a", "b", "c", "d"], kv_tokens=100_000, held_new=1, context_tokens=60_000)
        limits = Misa(paper=paper).limits(view, NONE)
        assert limits.workload_cap.tolist() == [[1, 1, 1, 1]]
        assert limits.ceiling_tokens.tolist() == [95_000]


class TestQuota:
    def test_one_each_lands_once_per_workload_unless_as_published(self) -> None:
        view = FleetView.build(
            ["r0", "r1"], ["a", "b", "c"], kv_tokens=100_000, held_new=2, context_tokens=90_000, residency_s=60
        )
        ours = MisaT().limits(view, NONE).workload_cap
        assert ours.sum(axis=0).tolist() == [1, 1, 1]
        assert sorted(ours.sum(axis=1).tolist()) == [1, 2], "ties go round the replicas"
        assert MisaT(paper=True).limits(view, NONE).workload_cap.tolist() == [[1, 1, 1]] * 2

    def test_one_each_lands_where_the_remainder_is_largest(self) -> None:
        view = FleetView.build(["r0", "r1"], ["a", "b"], kv_tokens=[30_000, 50_000], held_new=1, context_tokens=60_000)
        caps = Misa().limits(view, NONE).workload_cap
        assert caps[1].tolist() == [1, 1]
        assert sorted(caps[0].tolist()) == [0, 1], "a replica whose every share is below one session serves the largest"

    def test_sessions_larger_than_a_replica_use_every_replica(self) -> None:
        # Four sessions of 120,000 tokens on four replicas of 100,000: floor(B / k) is 0 everywhere.
        view = FleetView.build(["r0", "r1", "r2", "r3"], ["a"], kv_tokens=100_000, held_new=4, context_tokens=120_000)
        assert Misa().limits(view, NONE).workload_cap.tolist() == [[1], [1], [1], [1]]
        one = dataclasses.replace(view, held_new=np.array([1]))  # 30,000 tokens a replica: nothing is scarce
        assert Misa().limits(one, NONE).workload_cap.tolist() == [[1], [1], [1], [1]]
        closed = dataclasses.replace(view, accepting=np.array([True, False, True, False]))
        assert Misa().limits(closed, NONE).workload_cap.tolist() == [[1], [0], [1], [0]]

    def test_one_each_needs_a_replica_that_accepts(self) -> None:
        view = FleetView.build(
            ["r0", "r1"], ["a"], kv_tokens=[30_000, 50_000], held_new=1, context_tokens=60_000, accepting=[True, False]
        )
        assert Misa().limits(view, NONE).workload_cap.tolist() == [[1], [0]]
        nobody = dataclasses.replace(view, accepting=np.array([False, False]))
        assert Misa().limits(nobody, NONE).workload_cap.tolist() == [[0], [0]]

    def test_unknown_size_means_no_cap_and_no_share(self) -> None:
        view = mixed(context_tokens=[40_000, 0, 8_000])
        caps = Misa().limits(view, NONE).workload_cap[0]
        alone = Misa().limits(mixed(held_new=[30, 0, 50]), NONE).workload_cap[0]
        assert caps[1] == math.inf
        assert caps[[0, 2]].tolist() == alone[[0, 2]].tolist()

    def test_unknown_residency_means_no_cap_of_misa_t(self) -> None:
        assert MisaT().limits(mixed(residency_s=[600, 900, 0]), NONE).workload_cap[0, 2] == math.inf

    def test_unknown_capacity_means_no_cap(self) -> None:
        assert (MisaT().limits(mixed(math.inf), NONE).workload_cap == math.inf).all()

    def test_an_empty_replica_is_free_for_any_workload(self) -> None:
        assert Misa().limits(mixed(held_new=0), NONE).workload_cap.tolist() == [[25, 16, 125]]

    def test_quotas_divide_what_is_scarce(self) -> None:
        for policy in (Misa(), MisaT()):
            assert policy.limits(mixed(held_new=1), NONE).workload_cap.tolist() == [[25, 16, 125]]
            assert policy.limits(mixed(), NONE).workload_cap[0, 0] < 25

    def test_no_replica_and_no_workload_are_answered(self) -> None:
        for view in (FleetView.build([], ["a"]), FleetView.build(["r0"], []), FleetView.build([], [])):
            for policy in (Open(), StaticCap(), Misa(), MisaT()):
                policy.limits(view, NONE).to_raw(view)

    def test_waiting_and_paused_sessions_count_where_they_may_go(self) -> None:
        view = FleetView.build(
            ["r0", "r1", "r2"], ["a"], kv_tokens=[300, 100, 500], accepting=[True, True, False],
            sessions_running=[[1], [2], [3]], sessions_idle=1, held_new=3, paused=5, held_paused=2,
        )  # fmt: skip
        assert unfinished(view).tolist() == [[2 + 6], [3 + 2], [4]]

    def test_a_replica_of_unknown_capacity_counts_as_the_largest(self) -> None:
        view = FleetView.build(["r0", "r1"], ["a"], kv_tokens=[100, math.inf], held_new=4)
        assert unfinished(view).tolist() == [[2], [2]]


class TestStability:
    """A cap gates admissions, so noise in it would act by its running maximum."""

    @staticmethod
    def caps(sizes: np.ndarray, *, memory: bool) -> np.ndarray:
        last, caps = NONE, []
        for size in sizes:
            view = FleetView.build(["r0"], ["a"], kv_tokens=1_000_000, held_new=50, context_tokens=size, residency_s=9)
            last = MisaT().limits(view, last if memory else NONE)
            caps.append(last.workload_cap[0, 0])
        return np.array(caps)

    def test_noise_around_a_whole_number_does_not_move_a_cap(self) -> None:
        sizes = 50_000 * np.random.default_rng(0).uniform(0.99, 1.01, 200)  # 1e6 / k in 19.8 .. 20.2
        assert set(self.caps(sizes, memory=True)[1:].tolist()) <= {19.0, 20.0}
        assert (np.diff(self.caps(sizes, memory=True)) != 0).sum() <= 1
        assert (np.diff(self.caps(sizes, memory=False)) != 0).sum() > 50, "the protection is what holds it"

    def test_a_cap_follows_what_really_changes(self) -> None:
        assert self.caps(np.array([50_000, 25_000, 100_000]), memory=True).tolist() == [20, 40, 10]

    def test_caps_kept_for_other_rows_are_forgotten(self) -> None:
        last = Misa().limits(mixed(), NONE)
        view = FleetView.build(
            ["new"], ["agent", "rlvr", "rlhf"], kv_tokens=1_000_000, held_new=1, context_tokens=1_000
        )
        assert Misa().limits(view, last).workload_cap.tolist() == Misa().limits(view, NONE).workload_cap.tolist()


class TestBaselines:
    def test_open_lifts_every_limit(self) -> None:
        raw = Open().limits(mixed(), NONE).to_raw(mixed())
        assert {name: value.tolist() for name, value in raw.items()} == {
            "ceiling_tokens": [math.inf],
            "overflow_tokens": [math.inf],
        }

    def test_static_cap_sets_one_number_per_replica(self) -> None:
        assert StaticCap(7).limits(mixed(), NONE).to_raw(mixed())["session_cap"].tolist() == [7]

    @pytest.mark.parametrize("sessions", [0, -1, 1.5, True, "8"])
    def test_static_cap_refuses_what_is_no_count(self, sessions: object) -> None:
        with pytest.raises(InvalidArgument, match=r"sessions: got .*, accepted is a whole number >= 1"):
            StaticCap(sessions)


class TestLimits:
    VIEW = FleetView.build(["r0", "r1"], ["a", "b", "c"], kv_tokens=1_000)

    def test_scalars_fill_the_shape_and_unset_fields_stay_away(self) -> None:
        raw = Limits(session_cap=3, workload_cap=math.inf, weight=2, bypass=4, lookahead=8).to_raw(self.VIEW)
        assert {name: np.shape(value) for name, value in raw.items()} == {
            "session_cap": (2,), "workload_cap": (2, 3), "weight": (3,), "bypass": (), "lookahead": (),
        }  # fmt: skip
        assert all(np.asarray(value).dtype == np.float64 for value in raw.values())
        assert raw["workload_cap"].flags.c_contiguous

    def test_columns_of_any_layout_are_taken(self) -> None:
        wanted = np.arange(6, dtype=np.int32).reshape(2, 3)
        raw = Limits(workload_cap=np.asfortranarray(wanted)).to_raw(self.VIEW)["workload_cap"]
        assert raw.tolist() == wanted.tolist()
        assert raw.flags.c_contiguous

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"session_cap": [1, math.nan]}, r"session_cap\[r1\]: got nan, accepted is a number >= 0 or inf"),
            ({"workload_cap": [[1, 1, 1], [1, -2, 1]]}, r"workload_cap\[r1, b\]: got -2, accepted is a number >= 0"),
            ({"workload_cap": [1, 2]}, r"workload_cap: got shape \(2,\), accepted is a number or shape \(2, 3\)"),
            ({"weight": [1, 0, 1]}, r"weight\[b\]: got 0, accepted is a number > 0"),
            ({"growth_tokens": math.inf}, r"growth_tokens: got inf, accepted is a number >= 0"),
            ({"lease_s": "long"}, r"lease_s: got 'long', accepted is a number or an array of numbers"),
            ({"turn_cap": [True, False]}, r"turn_cap: got \[True, False\], accepted is a number or an array"),
            ({"price": [[1], [1, 2]]}, r"price: got .*, accepted is a number or an array of numbers"),
            ({"bypass": [1, 2]}, r"bypass: got shape \(2,\), accepted is one number"),
            ({"lookahead": 0.5}, r"lookahead: got 0.5, accepted is a number >= 1"),
            ({"overflow_tokens": 999}, r"overflow_tokens\[r0\]: got 999, accepted is at least ceiling_tokens, 1000"),
            ({"ceiling_tokens": 5, "overflow_tokens": [5, 4]}, r"overflow_tokens\[r1\]: got 4, .* ceiling_tokens, 5"),
            ({"placement": "fifo"}, r"placement: got 'fifo', accepted is cost, round_robin, least_loaded, cache_aware"),
            ({"placement": 3}, r"placement: got 3, accepted is cost"),
            ({"placement_args": [1]}, r"placement_args: got \[1\], accepted is a dict from str to numbers"),
            ({"placement_args": {"turns": 1}}, r"placement_args\[turns\]: got 1, accepted is sticky"),
            (
                {"placement": "dynamo", "placement_args": {"temperature": math.nan}},
                r"placement_args\[temperature\]: got nan",
            ),
            (
                {"placement": "dynamo", "placement_args": {"temperature": math.inf}},
                r"placement_args\[temperature\]: got inf, accepted is a finite",
            ),
            ({"placement": "hash", "placement_args": {"sticky": 0.5}}, r"placement_args\[sticky\]: got 0.5, .* 0 or 1"),
            (
                {"placement": "cache_aware", "placement_args": {"cache_threshold": "x"}},
                r"placement_args\[cache_threshold\]: got 'x', accepted is a number from 0 to 1",
            ),
            ({"shed": 1}, r"shed: got 1, accepted is True or False"),
            ({"memory": {"cap": [1]}}, r"memory: got .*, accepted is a dict from str to ndarray"),
        ],
    )
    def test_what_cannot_be_enforced_is_named(self, fields: dict[str, object], message: str) -> None:
        with pytest.raises(PolicyError, match=rf"limits\.{message}"):
            Limits(**fields).to_raw(self.VIEW)


class TestFleetView:
    def test_raw_columns_become_read_only_arrays(self) -> None:
        view = FleetView.build(["r0", "r1"], ["a"], kv_tokens=[1, 2], sessions_idle=[[3], [4]], accepting=[True, False])
        columns = {}
        for name in (field.name for field in dataclasses.fields(view)):
            value = getattr(view, name)
            if isinstance(value, np.ndarray):
                shape = {(2,): "R", (1,): "W", (2, 1): "RW"}[value.shape]
                columns[name] = (shape, value.dtype.str.lstrip("<|").replace("b1", "?"), value.tobytes())
        columns["of_a_later_version"] = ("R", "f8", bytes(16))
        raw = {
            "step": 7,
            "now_s": 1.5,
            "elapsed_s": 0.5,
            "replicas": ("r0", "r1"),
            "workloads": ("a",),
            "columns": columns,
        }
        again = FleetView.from_raw(raw)
        assert (again.step, again.now_s, again.elapsed_s) == (7, 1.5, 0.5)
        assert again.accepting.tolist() == [True, False]
        assert again.sessions.tolist() == [[3], [4]]
        with pytest.raises(ValueError, match="read-only"):
            again.kv_tokens[0] = 9

    def test_wrong_columns_are_refused(self) -> None:
        with pytest.raises(InvalidArgument, match=r"kv_tokens: got shape \(3,\), accepted is \(2,\)"):
            FleetView.build(["r0", "r1"], ["a"], kv_tokens=[1, 2, 3])
        with pytest.raises(InvalidArgument, match="got 'kv', accepted are kv_tokens, "):
            FleetView.build(["r0"], ["a"], kv=1)

    def test_it_is_frozen(self) -> None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            mixed().step = 3


class HalfFull:
    """A policy of a user."""

    def limits(self, view: FleetView, last: Limits) -> Limits:  # noqa: ARG002
        return Limits(ceiling_tokens=0.5 * view.kv_tokens)


class NeedsArguments(HalfFull):
    def __init__(self, share: float) -> None:
        self.share = share


INSTANCE = HalfFull()


class TestLookup:
    @pytest.mark.parametrize(
        ("name", "kind"), [("open", Open), ("static-cap", StaticCap), ("misa", Misa), ("misa-t", MisaT)]
    )
    def test_shipped_names(self, name: str, kind: type) -> None:
        assert type(lookup(name)) is kind
        assert isinstance(lookup(name), Policy)

    def test_static_cap_takes_its_number(self) -> None:
        assert lookup("static-cap:24").sessions == 24

    def test_a_users_class_function_or_instance(self) -> None:
        assert isinstance(lookup(f"{__name__}:HalfFull"), HalfFull)
        assert lookup(f"{__name__}:INSTANCE") is INSTANCE

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("fifo", "got 'fifo', accepted is open, static-cap, .*, cache-aware, dynamo-cost, static-cap:N"),
            ("", "got '', accepted is open"),
            ("static-cap:0", "got 'static-cap:0', accepted is static-cap:N with a whole number N >= 1"),
            ("static-cap:many", "accepted is static-cap:N with a whole number"),
            ("no_such_module:P", "cannot be imported .*no_such_module"),
            ("math:Policy", "cannot be imported .*no attribute 'Policy'"),
            ("math:pi", "'math:pi' is float, accepted is a class with"),
            (f"{__name__}:NeedsArguments", "cannot be made without arguments"),
        ],
    )
    def test_unknown_names_say_what_exists(self, name: str, message: str) -> None:
        with pytest.raises(UnknownPolicy, match=message):
            lookup(name)


class TestBlockTime:
    """The ceiling learns from what continuations miss; everything else follows from the view."""

    @staticmethod
    def view(turns: int, forecast: float, missing: float, **columns: object) -> FleetView:
        return FleetView.build(
            ["r0", "r1"],
            ["agent", "rlvr"],
            kv_tokens=1_000_000,
            prefill_tokens_per_s=[20_000.0, 50_000.0],
            reported_turns=[turns, 0],
            forecast_tokens=[forecast, 0],
            missing_tokens=[missing, 0],
            **columns,
        )

    def test_limits_of_a_quiet_fleet(self) -> None:
        view = self.view(0, 0, 0, growth_tokens=[8_000, 60_000], output_tokens=[500, 9_000], target=[0.7, 0.3])
        assert BlockTime().limits(view, NONE).growth_tokens is None
        limits = BlockTime(2.0, reserve_growth=True).limits(view, NONE)
        assert limits.ceiling_tokens.tolist() == [950_000, 950_000]
        assert limits.overflow_tokens.tolist() == [980_000, 980_000]
        assert limits.lease_s.tolist() == [[100, 100], [40, 40]]
        assert (limits.growth_tokens.tolist(), limits.output_tokens.tolist()) == ([8_000, 60_000], [500, 9_000])
        assert limits.weight.tolist() == [0.7, 0.3]

    def test_misses_cut_the_ceiling_once_the_last_cut_has_taken_effect(self) -> None:
        policy = BlockTime()

        def step(last: Limits, turns: int, missing: float, commit: float, **columns: object) -> Limits:
            view = self.view(turns, 10_000.0 * turns, missing, commit_tokens=[commit, 0], elapsed_s=60.0, **columns)
            return policy.limits(view, last)

        first = step(NONE, 31, 310_000, 0)
        assert first.ceiling_tokens[0] == 950_000, "31 continuations are not enough"
        cut = step(first, 32, 320_000, 900_000)
        assert cut.ceiling_tokens.tolist() == [950_000 * 0.95, 950_000], "and it is that replica's alone"
        assert step(cut, 63, 630_000, 0).ceiling_tokens[0] == 950_000 * 0.95, "what was judged is not judged again"
        full = step(cut, 64, 640_000, 940_000)
        assert full.ceiling_tokens[0] == 950_000 * 0.95, "its sessions have not left yet"
        again = step(cut, 64, 640_000, 900_000)
        assert again.ceiling_tokens[0] == pytest.approx(950_000 * 0.95**2)
        few = step(cut, 64, 320_000 + 15_000, 0)
        assert few.ceiling_tokens[0] == 950_000 * 0.95, "less than 5 % is missing"
        raised = step(again, 96, 640_000, 0, held_new=[1, 0])
        assert raised.ceiling_tokens[0] == pytest.approx(950_000 * (0.95**2 + 0.005)), (
            "half a percent a minute while it binds"
        )
        least = again
        for turns in range(96, 96 + 32 * 20, 32):
            least = step(least, turns, 10_000.0 * turns, 0)
        assert least.ceiling_tokens[0] == pytest.approx(950_000 * 0.7)

    def test_a_replica_that_came_back_counts_from_zero(self) -> None:
        policy = BlockTime()
        cut = policy.limits(self.view(40, 400_000, 400_000), NONE)
        assert cut.ceiling_tokens[0] == 950_000 * 0.95
        anew = policy.limits(self.view(3, 30_000, 30_000), cut)
        assert anew.ceiling_tokens[0] == 950_000 * 0.95

    @pytest.mark.parametrize("kappa", [0, -1.0, math.inf, math.nan, True, "1"])
    def test_a_bad_factor_is_refused(self, kappa: object) -> None:
        with pytest.raises(InvalidArgument, match="kappa"):
            BlockTime(kappa)  # type: ignore[arg-type]


@pytest.mark.parametrize("lease_s", [-1, 601, math.nan, True, "30"])
def test_a_bad_lease_is_refused(lease_s: object) -> None:
    with pytest.raises(InvalidArgument, match="lease_s"):
        LeaseGate(lease_s)  # type: ignore[arg-type]
