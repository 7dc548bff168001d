"""Play scenarios under policies: the model engines behind the real router, stepped by the real control loop."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from turnout import _core
from turnout.config import Replica, Workload
from turnout.control import ControlState, step
from turnout.errors import InvalidArgument
from turnout.policies.registry import lookup
from turnout.policies.view import FleetView
from turnout.simulate.engines import engine
from turnout.simulate.metrics import Record, bounds, record

if TYPE_CHECKING:
    from turnout.policies.contract import Policy
    from turnout.simulate.scenario import Scenario

SAMPLES: Final = 240
"""Points per line of the picture."""

Progress = Callable[[int, float], None]
"""Called with the number of the run and the share of it that is done, 0..1, from the thread of the run."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What is the same in every run.

    Attributes:
        replicas: Number of replicas, at least 1.
        kv_tokens: KV capacity of each, tokens, above 0.
        engine: Name of the model engine.
        concurrency: Sessions outstanding at any time (closed loop); a sub-agent does not count.
        duration_s: Simulated time after which a run stops, s; inf = play the list of sessions once, to its end.
        repeat: Play the list again when it is exhausted, with fresh content except what sessions share.
        control_period_s: Time between control steps, s.
        flush_every_sessions: New weights, and empty caches, whenever so many more sessions have finished; None = never.
        outages: (replica, time at which it goes, how long it is away) in s; it comes back with an empty cache, and what
            ran there is sent again. A replica that is away from time 0 joins later.
        feed: (lag in s, share of batches that are lost and come by replay) of the engines' cache events; None = the
            router is not told and judges by its own decisions.
        prefill_factor: Factor on every duration of prefill in the engines; the router is told what the engine is
            without it.
        decode_factor: The same for decode.
    """

    replicas: int = 4
    kv_tokens: float = 788_000
    engine: str = "qwen3-8b-h200"
    concurrency: int = 64
    duration_s: float = math.inf
    repeat: bool = False
    control_period_s: float = 1.0
    flush_every_sessions: int | None = None
    outages: tuple[tuple[int, float, float], ...] = ()
    feed: tuple[float, float] | None = None
    prefill_factor: float = 1.0
    decode_factor: float = 1.0

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            InvalidArgument: One is out of range; the message names it, its value and what is accepted.
        """
        for name in ("replicas", "concurrency"):
            if getattr(self, name) < 1:
                raise InvalidArgument(f"{name}: got {getattr(self, name)}, accepted is a whole number >= 1")
        for name in ("kv_tokens", "duration_s", "control_period_s", "prefill_factor", "decode_factor"):
            if not getattr(self, name) > 0:
                raise InvalidArgument(f"{name}: got {getattr(self, name)}, accepted is a number > 0")
        if self.flush_every_sessions is not None and self.flush_every_sessions < 1:
            raise InvalidArgument(f"flush_every_sessions: got {self.flush_every_sessions}, accepted is a number >= 1")
        if self.feed is not None and not (0 <= self.feed[0] < math.inf and 0 <= self.feed[1] < 1):
            raise InvalidArgument(f"feed: got {self.feed}, accepted is a lag >= 0 s and a loss from 0 to below 1")
        for replica, at_s, away_s in self.outages:
            if not (0 <= replica < self.replicas and 0 <= at_s < math.inf and away_s > 0):
                raise InvalidArgument(
                    f"outages: got replica {replica} from {at_s} s for {away_s} s, accepted is a replica from 0 to "
                    f"{self.replicas - 1}, a time >= 0 and a duration > 0"
                )
        if self.repeat and math.isinf(self.duration_s):
            raise InvalidArgument("duration_s: got inf with repeat=True, accepted is a finite duration")
        engine(self.engine)


@dataclass(frozen=True, slots=True)
class Run:
    """What came out of one run.

    Attributes:
        record: The numbers, see `metrics.record`.
        series: The samples over time, `Simulation.series()`.
        finishes: Who finished when, `Simulation.finishes()`.
        control: State of the control loop at the end.
        wall_s: Time that the run took, s.
    """

    record: Record
    series: dict[str, Any] = field(repr=False)
    finishes: dict[str, bytes] = field(repr=False)
    control: ControlState = field(repr=False)
    wall_s: float


def run(  # noqa: PLR0913 - what is played, by whom, where
    policy: str,
    seed: int,
    scenario: Scenario,
    setup: Setup,
    progress: Callable[[float], None] | None = None,
    *,
    decide: Policy | None = None,
) -> Run:
    """Simulate one policy.

    Args:
        policy: Name of the policy, see `policies.lookup`.
        seed: Seed of the router's ties.
        scenario: What to play.
        setup: The fleet and the load.
        progress: Called now and then with the share that is done, 0..1.
        decide: The policy itself where the name is only a name.

    Returns:
        The numbers and the samples. The same arguments give the same record on every machine.

    Raises:
        UnknownPolicy: No such policy.
        PolicyError: The policy failed: in a simulation that is an error, not something to survive.
    """
    started = time.monotonic()
    decide, state, model = decide or lookup(policy), ControlState(), engine(setup.engine)
    # Without an end in time a sample every five seconds still draws a smooth line.
    sample_period_s = max(
        setup.control_period_s, setup.duration_s / SAMPLES if math.isfinite(setup.duration_s) else 5.0
    )
    simulation = _core.Simulation(
        [
            Replica(
                f"r{number}",
                kv_tokens=setup.kv_tokens,
                prefill_tokens_per_s=model.prefill_tokens_per_s,
                decode_s_per_kv_token=model.decode_s_per_kv_token,
            )
            for number in range(setup.replicas)
        ],
        [
            Workload(name, target=target)
            for name, target in zip(scenario.workloads, scenario.targets.tolist(), strict=True)
        ],
        scenario=scenario.to_raw(),
        engine=model.slowed(setup.prefill_factor, setup.decode_factor).to_raw(),
        concurrency=setup.concurrency,
        duration_s=setup.duration_s,
        repeat=setup.repeat,
        sessions=None,
        seed=seed,
        control_period_s=setup.control_period_s,
        sample_period_s=sample_period_s,
        flush_every_sessions=setup.flush_every_sessions,
        outages=setup.outages,
        feed=setup.feed,
    )
    while simulation.advance():
        step(simulation, decide, state=state, on_policy_error="raise")
        if progress is not None and state.steps % 16 == 0:
            progress(simulation.finished_fraction)
    # Every submitted turn is accounted for, or the run is worth nothing.
    simulation.audit()
    targets = dict(zip(scenario.workloads, scenario.targets.tolist(), strict=True))
    fleet_tokens = setup.replicas * setup.kv_tokens
    numbers = record(policy, seed, simulation.result(), targets)
    numbers |= bounds(simulation.result(), FleetView.from_raw(simulation.raw_view()), fleet_tokens, setup.replicas)
    return Run(numbers, simulation.series(), simulation.finishes(), state, time.monotonic() - started)


def run_all(
    policies: Sequence[str],
    seeds: Sequence[int],
    scenario: Callable[[int], Scenario],
    setup: Setup,
    progress: Progress | None = None,
) -> list[Run]:
    """Simulate every policy under every seed, side by side.

    Threads, not processes: a run leaves the interpreter between two control steps, so runs share the cores, and a
    policy may be any object of this process.

    Args:
        policies: Names; every one is looked up before the first run starts.
        seeds: Seeds.
        scenario: Makes the scenario of a seed; called once per seed.
        setup: The fleet and the load.
        progress: Told how far each run is; runs are numbered in the order of the result.

    Returns:
        The runs: policies in the given order, each with its seeds in the given order.

    Raises:
        UnknownPolicy: A name is unknown.
        PolicyError: A policy failed. Runs that have not started are dropped.
    """
    for name in policies:
        lookup(name)
    scenarios = {seed: scenario(seed) for seed in seeds}
    lock = threading.Lock()

    def one(number: int, policy: str, seed: int) -> Run:
        def report(share: float) -> None:
            if progress is not None:
                with lock:
                    progress(number, share)

        done = run(policy, seed, scenarios[seed], setup, report)
        report(1.0)
        return done

    jobs = [(policy, seed) for policy in policies for seed in seeds]
    with ThreadPoolExecutor(max_workers=min(len(jobs), os.cpu_count() or 1)) as pool:
        futures = [pool.submit(one, number, *job) for number, job in enumerate(jobs)]
        try:
            return [future.result() for future in futures]
        finally:
            pool.shutdown(cancel_futures=True)
