"""What a policy reads: the measured state of the fleet at one moment, as NumPy columns."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from turnout.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class _Column(NamedTuple):
    """Shape (`R`, `W` or `RW`), dtype and the value that a hand-built view uses when none is given."""

    shape: str
    dtype: str
    default: float


_COLUMNS: Final[dict[str, _Column]] = {
    "kv_tokens": _Column("R", "f8", np.inf),
    "block_tokens": _Column("R", "i8", 16),
    "accepting": _Column("R", "?", 1),
    "exact": _Column("R", "?", 0),
    "weight_version": _Column("R", "i8", -1),
    "charge_tokens": _Column("R", "f8", 0),
    "commit_tokens": _Column("R", "f8", 0),
    "idle_tokens": _Column("R", "f8", 0),
    "expired_tokens": _Column("R", "f8", 0),
    "lost_tokens": _Column("R", "f8", 0),
    "resident_tokens": _Column("R", "f8", 0),
    "backlog_tokens": _Column("R", "f8", 0),
    "running_turns": _Column("R", "i8", 0),
    "reported_turns": _Column("R", "i8", 0),
    "forecast_tokens": _Column("R", "f8", 0),
    "missing_tokens": _Column("R", "f8", 0),
    "stalled": _Column("R", "?", 0),
    "hit_fraction": _Column("R", "f8", np.nan),
    "engine_kv_fraction": _Column("R", "f8", np.nan),
    "engine_running": _Column("R", "f8", np.nan),
    "engine_waiting": _Column("R", "f8", np.nan),
    "preemptions_per_s": _Column("R", "f8", np.nan),
    "metrics_age_s": _Column("R", "f8", np.inf),
    "decode_tokens_per_s": _Column("R", "f8", 0),
    "dead_tokens_per_s": _Column("R", "f8", 0),
    "prefill_tokens_per_s": _Column("R", "f8", 20_000),
    "sessions_running": _Column("RW", "i8", 0),
    "sessions_idle": _Column("RW", "i8", 0),
    "workload_tokens": _Column("RW", "f8", 0),
    "reserved_tokens": _Column("RW", "f8", 0),
    "target": _Column("W", "f8", np.nan),
    "committed_tokens": _Column("W", "f8", 0),
    "guaranteed_tokens": _Column("W", "f8", 0),
    "held_new": _Column("W", "i8", 0),
    "held_paused": _Column("W", "i8", 0),
    "paused": _Column("W", "i8", 0),
    "held_tokens": _Column("W", "f8", 0),
    "oldest_hold_s": _Column("W", "f8", 0),
    "arrivals_per_s": _Column("W", "f8", 0),
    "finishes_per_s": _Column("W", "f8", 0),
    "finished": _Column("W", "i8", 0),
    "pauses": _Column("W", "i8", 0),
    "moves": _Column("W", "i8", 0),
    "forced": _Column("W", "i8", 0),
    "context_tokens": _Column("W", "f8", 0),
    "growth_tokens": _Column("W", "f8", 0),
    "final_tokens": _Column("W", "f8", 0),
    "output_tokens": _Column("W", "f8", 0),
    "residency_s": _Column("W", "f8", 0),
    "token_seconds": _Column("W", "f8", 0),
    "active_s": _Column("W", "f8", 0),
    "gap_s": _Column("W", "f8", 0),
    "gap_p95_s": _Column("W", "f8", 0),
    "continue_fraction": _Column("W", "f8", 1),
    "samples": _Column("W", "i8", 0),
    "virtual_time": _Column("W", "f8", 0),
}


@dataclass(frozen=True, slots=True, eq=False)
class FleetView:
    """The measured state of the fleet at one moment. A policy reads it and changes nothing.

    Every array is a read-only, C-contiguous copy. Rows follow `replicas` (R of them), columns follow `workloads` (W).
    Shapes are (R,), (W,) or (R, W); float64 unless the annotation says otherwise.

    Attributes:
        step: Number of this view; limits computed from it carry it back.
        now_s: Time of the view on the caller's clock, s.
        elapsed_s: Time since limits were last applied, s.
        replicas: Names of the replicas.
        workloads: Names of the workloads.
        kv_tokens: (R,) KV capacity B, tokens; +inf = unknown.
        block_tokens: (R,) int64, tokens per block of the engine.
        accepting: (R,) bool, whether the replica takes new sessions.
        exact: (R,) bool, whether the engine's own cache events say all of what it holds.
        weight_version: (R,) int64, version of the weights; -1 = unknown.
        charge_tokens: (R,) tokens held against the replica for admitted sessions, a shared prefix once.
        commit_tokens: (R,) the charge with every session's expected growth added, tokens.
        idle_tokens: (R,) tokens that would be free if every idle session were reclaimed.
        expired_tokens: (R,) the part of `idle_tokens` whose lease is over.
        lost_tokens: (R,) what idle sessions lost to the engine's eviction in the last `elapsed_s`; no longer charged.
        resident_tokens: (R,) tokens judged to be in the engine's cache.
        backlog_tokens: (R,) uncached prompt tokens of placed turns that have not reported a first token.
        running_turns: (R,) int64, turns placed and not ended.
        reported_turns: (R,) int64, continuations that said what they found in the cache, since the replica came.
        forecast_tokens: (R,) prompt tokens of those that were judged to be in the cache.
        missing_tokens: (R,) the part of `forecast_tokens` that was not there: the replica holds less than is charged.
        stalled: (R,) bool, nothing is charged and somebody waits.
        hit_fraction: (R,) share of `forecast_tokens` that was found, faded over some 32 continuations, 0..1; NaN until
            reported.
        engine_kv_fraction: (R,) share of the engine's KV blocks in use, as it reports, 0..1; NaN without reports.
        engine_running: (R,) requests that run in the engine, as it reports; NaN without reports.
        engine_waiting: (R,) requests that wait in the engine, as it reports; NaN without reports.
        preemptions_per_s: (R,) preemptions in the engine per second, faded; NaN without reports.
        metrics_age_s: (R,) time since the engine reported anything, s; inf without reports.
        decode_tokens_per_s: (R,) output tokens of completed turns per second, faded.
        dead_tokens_per_s: (R,) KV tokens per second whose sessions ended, faded: they push others out of the cache.
        prefill_tokens_per_s: (R,) prefill rate P, uncached tokens per second.
        sessions_running: (R, W) int64, charged sessions with an open turn; sub-agents count with their parent.
        sessions_idle: (R, W) int64, charged sessions between two turns. Caps count running + idle.
        workload_tokens: (R, W) union of that workload's own claims, tokens; a block that two workloads share counts
            for both.
        reserved_tokens: (R, W) tokens reserved for the output of running turns.
        target: (W,) wanted share of finished sessions, 0..1; NaN = unset.
        committed_tokens: (W,) commit of the workload on all replicas, tokens: what its guarantee and limit count.
        guaranteed_tokens: (W,) its guarantee as it is in force, scaled down where the ceilings do not suffice.
        held_new: (W,) int64, first turns that wait.
        held_paused: (W,) int64, paused sessions with a turn that waits.
        paused: (W,) int64, all paused sessions.
        held_tokens: (W,) need of the turns that wait, tokens.
        oldest_hold_s: (W,) age of the turn that has waited longest, s; 0 if none.
        arrivals_per_s: (W,) new sessions per second, exponentially averaged.
        finishes_per_s: (W,) completed sessions per second, exponentially averaged.
        finished: (W,) int64, completed sessions since the start.
        pauses: (W,) int64, sessions reclaimed while idle, since the start.
        moves: (W,) int64, sessions that changed their replica, since the start.
        forced: (W,) int64, turns placed against a limit, since the start.
        context_tokens: (W,) mean context k of a live session, tokens; 0 = unknown.
        growth_tokens: (W,) mean growth L of a session from its first prompt to its end, tokens; 0 = unknown.
        final_tokens: (W,) mean length of a session at its end, over recently finished ones, tokens; 0 = unknown.
        output_tokens: (W,) expected output of a running turn, tokens; 0 = unknown.
        residency_s: (W,) mean residency T, first placement to last completion with tool gaps, s; 0 = unknown.
        token_seconds: (W,) mean charge integrated over a session Z = kT, token s; 0 = unknown.
        active_s: (W,) mean part of the residency with a turn that runs, s; 0 = unknown.
        gap_s: (W,) mean time between the end of a turn and the submit of the next, s; 0 = unknown. A gap that lasts
            counts as what it is already, once that is more than the mean.
        gap_p95_s: (W,) the same for the 0.95 quantile of the latest 128 gaps, s.
        continue_fraction: (W,) share of turns that were followed by another, of those of which it is known, 0..1; 1
            until then.
        samples: (W,) int64, finished sessions behind these estimates.
        virtual_time: (W,) V of the order between workloads, price / weight.

    Example:
        >>> view = FleetView.build(["r0", "r1"], ["agent"], kv_tokens=[200_000, 100_000], held_new=3)
        >>> view.kv_tokens
        array([200000., 100000.])
        >>> view.sessions_idle.shape, view.held_new.dtype.name, view.held_new.flags.writeable
        ((2, 1), 'int64', False)
    """

    step: int
    now_s: float
    elapsed_s: float
    replicas: tuple[str, ...]
    workloads: tuple[str, ...]
    kv_tokens: Floats
    block_tokens: Ints
    accepting: Bools
    exact: Bools
    weight_version: Ints
    charge_tokens: Floats
    commit_tokens: Floats
    idle_tokens: Floats
    expired_tokens: Floats
    lost_tokens: Floats
    resident_tokens: Floats
    backlog_tokens: Floats
    running_turns: Ints
    reported_turns: Ints
    forecast_tokens: Floats
    missing_tokens: Floats
    stalled: Bools
    hit_fraction: Floats
    engine_kv_fraction: Floats
    engine_running: Floats
    engine_waiting: Floats
    preemptions_per_s: Floats
    metrics_age_s: Floats
    decode_tokens_per_s: Floats
    dead_tokens_per_s: Floats
    prefill_tokens_per_s: Floats
    sessions_running: Ints
    sessions_idle: Ints
    workload_tokens: Floats
    reserved_tokens: Floats
    target: Floats
    committed_tokens: Floats
    guaranteed_tokens: Floats
    held_new: Ints
    held_paused: Ints
    paused: Ints
    held_tokens: Floats
    oldest_hold_s: Floats
    arrivals_per_s: Floats
    finishes_per_s: Floats
    finished: Ints
    pauses: Ints
    moves: Ints
    forced: Ints
    context_tokens: Floats
    growth_tokens: Floats
    final_tokens: Floats
    output_tokens: Floats
    residency_s: Floats
    token_seconds: Floats
    active_s: Floats
    gap_s: Floats
    gap_p95_s: Floats
    continue_fraction: Floats
    samples: Ints
    virtual_time: Floats

    @classmethod
    def build(
        cls,
        replicas: Sequence[str],
        workloads: Sequence[str],
        *,
        step: int = 0,
        now_s: float = 0.0,
        elapsed_s: float = 1.0,
        **columns: ArrayLike,
    ) -> FleetView:
        """Make a view by hand, for tests and notebooks.

        Args:
            replicas: R names.
            workloads: W names.
            step: Number of the view.
            now_s: Time, s.
            elapsed_s: Time since the last limits, s.
            **columns: Any column of the class, as anything that broadcasts to its shape. Columns that are not given
                are those of an empty fleet of unknown capacity: zeros, `kv_tokens` infinite, `accepting` true,
                `block_tokens` 16, `weight_version` -1, `prefill_tokens_per_s` 20,000, `metrics_age_s` infinite,
                `continue_fraction` 1, and NaN where nothing is reported or set.

        Returns:
            A view with read-only columns.

        Raises:
            InvalidArgument: A column has an unknown name or a shape that does not broadcast.

        Example:
            >>> FleetView.build(["r0"], ["a", "b"], residency_s=[600, 30]).residency_s
            array([600.,  30.])
        """
        unknown = sorted(columns.keys() - _COLUMNS.keys())
        if unknown:
            raise InvalidArgument(f"columns: got {unknown[0]!r}, accepted are {', '.join(_COLUMNS)}")
        shapes = {"R": (len(replicas),), "W": (len(workloads),), "RW": (len(replicas), len(workloads))}
        arrays: dict[str, Any] = {}
        for name, column in _COLUMNS.items():
            value = np.asarray(columns.get(name, column.default))
            try:
                array = np.array(np.broadcast_to(value, shapes[column.shape]), dtype=column.dtype, order="C")
            except ValueError:
                raise InvalidArgument(
                    f"{name}: got shape {value.shape}, accepted is {shapes[column.shape]} or what broadcasts to it"
                ) from None
            array.flags.writeable = False
            arrays[name] = array
        return cls(
            step=step, now_s=now_s, elapsed_s=elapsed_s, replicas=tuple(replicas), workloads=tuple(workloads), **arrays
        )

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> FleetView:
        """Wrap the table that `Router.raw_view()` or `Simulation.raw_view()` returns, without copying a column.

        Args:
            raw: Keys `step`, `now_s`, `elapsed_s`, `replicas`, `workloads` and `columns`, a mapping from the column's
                name to (shape `"R"`, `"W"` or `"RW"`, dtype `"f8"`, `"i8"` or `"?"`, bytes in row-major order).

        Returns:
            The view. Columns that this version does not know are left out.
        """
        replicas, workloads = tuple(raw["replicas"]), tuple(raw["workloads"])
        matrix = (len(replicas), len(workloads))
        arrays: dict[str, Any] = {
            name: np.frombuffer(data, dtype).reshape(matrix) if shape == "RW" else np.frombuffer(data, dtype)
            for name, (shape, dtype, data) in raw["columns"].items()
            if name in _COLUMNS
        }
        return cls(
            step=int(raw["step"]),
            now_s=float(raw["now_s"]),
            elapsed_s=float(raw["elapsed_s"]),
            replicas=replicas,
            workloads=workloads,
            **arrays,
        )

    @property
    def sessions(self) -> Ints:
        """(R, W) int64, charged sessions, running or idle: what `session_cap` and `workload_cap` count."""
        return self.sessions_running + self.sessions_idle

    def reorder(self, replicas: Sequence[str]) -> FleetView:
        """The same fleet with its replica rows in another order, for laws such as "rows do not matter".

        Args:
            replicas: The names of this view, in the wanted order.

        Returns:
            A new view.

        Raises:
            InvalidArgument: The names are not those of this view.

        Example:
            >>> FleetView.build(["r0", "r1"], ["a"], kv_tokens=[1, 2]).reorder(["r1", "r0"]).kv_tokens
            array([2., 1.])
        """
        if sorted(replicas) != sorted(self.replicas):
            raise InvalidArgument(f"replicas: got {list(replicas)}, accepted is an order of {list(self.replicas)}")
        rows = [self.replicas.index(name) for name in replicas]
        changed: dict[str, Any] = {"replicas": tuple(replicas)}
        for name, column in _COLUMNS.items():
            if column.shape != "W":
                array = getattr(self, name)[rows]
                array.flags.writeable = False
                changed[name] = array
        return dataclasses.replace(self, **changed)
