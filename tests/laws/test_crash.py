"""Processes are killed at random points; a router restored from the journal decides as one that nobody interrupted."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import turnout
from turnout import policies, record

POINTS = int(os.environ.get("TURNOUT_CRASHES", "6"))
"""`TURNOUT_CRASHES=100` looks harder."""

EVENTS = 3_000
STEP_S = 0.05


def play(router: turnout.Router, at: int) -> object:
    """One event of a history that depends on its number alone; answers what a caller sees."""
    dice = random.Random(at)
    session, now = f"s{dice.randrange(40)}", at * STEP_S
    told: list[object] = []
    kind = dice.random()
    if kind < 0.5:
        tokens = [dice.randrange(4) for _ in range(dice.randrange(20, 200))]
        decision = router.submit(tokens, turn=f"t{at}", session=session, workload=dice.choice("ab"), now=now)
        told.append((decision.status, decision.reason, decision.replica, decision.receipt.need_tokens))
    elif kind < 0.85:
        told.append(router.complete(f"t{at - dice.randrange(1, 30)}", output=list(range(at % 50)), now=now).status)
    elif kind < 0.95:
        told.append(router.end_session(session, now=now).status)
    elif kind < 0.98:
        told.append(router.tick(now=now).status)
    else:
        router.step(now=now)
        told.append(router.view(now=now).commit_tokens.tolist())
    return [*told, [(word.turn, word.status, word.replica) for word in router.drain()]]


def new_router() -> turnout.Router:
    fleet = [turnout.Replica(f"r{at}", kv_tokens=3_000) for at in range(3)]
    kinds = [turnout.Workload("a"), turnout.Workload("b")]
    return turnout.Router(fleet, kinds, policy=policies.StaticCap(4), hash_key=bytes(16), seed=3)


def serve(path: Path) -> None:
    """What the process does that is killed: an event, a flush, and only then a word to the outside."""
    router = new_router()
    with record.JournalWriter(router, path) as journal:
        for at in range(EVENTS):
            play(router, at)
            journal.flush()
            os.write(1, b".")


def killed_after(path: Path, events: int) -> int:
    """Events that a process had acted on when it was killed."""
    command = [sys.executable, __file__, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:  # noqa: S603 - this very file
        assert process.stdout is not None
        seen = len(process.stdout.read(events))
        process.send_signal(signal.SIGKILL)
        seen += len(process.stdout.read())
        assert process.wait() in {-signal.SIGKILL, 0}
    return seen


@pytest.fixture(scope="module")
def uninterrupted() -> list[object]:
    router = new_router()
    return [play(router, at) for at in range(EVENTS)]


@pytest.mark.parametrize("point", range(POINTS))
def test_killed_and_restored(point: int, tmp_path: Path, uninterrupted: list[object]) -> None:
    path = tmp_path / "router.journal"
    acted = killed_after(path, random.Random(point).randrange(1, EVENTS))
    events = record.replay(path).events
    done = sum(events.get(name, 0) for name in ("submit", "complete", "end_session", "tick", "set_limits"))
    assert acted <= done <= acted + 1, "what was acted on is never lost, and nothing is made up"
    # The clock of this history goes on where it stood.
    router = record.restore(path, policy=policies.StaticCap(4), now=(done - 1) * STEP_S)
    router.audit()
    reference = new_router()
    for at in range(done):
        play(reference, at)
    assert router.snapshot() == reference.snapshot()
    for at in range(done, EVENTS):
        assert play(router, at) == uninterrupted[at]


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
