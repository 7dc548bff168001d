"""Jobs side by side in processes; what is finished is kept, so that an interrupted experiment goes on."""

from __future__ import annotations

import json
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any

from turnout.experiment.job import Job, play

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


def play_all(
    jobs: Sequence[Job], store: Path, *, processes: int, done: Callable[[int, int], None] | None = None
) -> list[dict[str, Any]]:
    """Play what has not been played.

    Args:
        jobs: The jobs; equal ones are played once.
        store: Folder of finished runs, `<key>.json`; made when it does not exist.
        processes: How many run at a time, at least 1.
        done: Told after each one how many are finished, and of how many.

    Returns:
        The results in the order of the jobs.

    Raises:
        PolicyError: A policy failed; what was finished before is kept.
    """
    store.mkdir(parents=True, exist_ok=True)
    keys = [job.key() for job in jobs]
    results: dict[str, dict[str, Any]] = {}
    for key in keys:
        if key not in results and (kept := _kept(store / f"{key}.json")) is not None:
            results[key] = kept
    waiting = {key: job for key, job in zip(keys, jobs, strict=True) if key not in results}
    total = len(set(keys))
    if done is not None:
        done(total - len(waiting), total)
    # A fresh interpreter each: a fork would copy the threads of the progress bar in whatever state they are.
    context = multiprocessing.get_context("spawn")
    if waiting:
        with ProcessPoolExecutor(min(processes, len(waiting)), mp_context=context) as pool:
            futures = {pool.submit(play, job): key for key, job in waiting.items()}
            try:
                for future in as_completed(futures):
                    key = futures[future]
                    _keep(store / f"{key}.json", future.result())
                    # Read back, so that a kept run and a fresh one are the same to the last digit.
                    results[key] = json.loads((store / f"{key}.json").read_text(encoding="utf-8"))
                    if done is not None:
                        done(len(results), total)
            finally:
                pool.shutdown(cancel_futures=True)
    return [results[key] for key in keys]


def _kept(path: Path) -> dict[str, Any] | None:
    """A finished run; None when there is none, or what is there is damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and {"config", "record", "series"} <= set(found) else None


def _keep(path: Path, result: dict[str, Any]) -> None:
    """Write a run whole or not at all."""
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(result, allow_nan=False), encoding="utf-8")
    part.replace(path)
