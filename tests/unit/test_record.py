"""Snapshots and journals: what is restored goes on, what is damaged is refused, files are replaced whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import turnout
from turnout import policies, record
from turnout.cli import main
from turnout.errors import AnswerDiffers, RecordError
from turnout.policies import Limits

if TYPE_CHECKING:
    from pathlib import Path

FLEET = [turnout.Replica("r0", kv_tokens=4_000), turnout.Replica("r1", kv_tokens=4_000)]


def busy_router(**options: object) -> turnout.Router:
    """A router with sessions that run, idle and wait."""
    router = turnout.Router(FLEET, hash_key=bytes(range(16)), **options)
    router.set_limits(Limits(session_cap=2), view=router.view(now=0.0), now=0.0)
    for at in range(6):
        prompt = np.arange(at * 1_000, at * 1_000 + 500)
        turn = router.submit(prompt, session=f"s{at}", max_new_tokens=100, deadline_s=60.0, now=float(at))
        if turn.placed and at % 2:
            router.complete(turn.turn, output=[1, 2, 3], cached_tokens=0, now=at + 0.5)
    return router


def answers(router: turnout.Router, *, since: float) -> list[object]:
    """What a router says from now on."""
    told: list[object] = [
        router.submit(np.arange(1_000, 1_600), session="s1", now=since + 1).replica,
        router.end_session("s0", now=since + 2).status,
        [(word.turn, word.status, word.reason, word.replica) for word in router.drain()],
        router.wake_at and round(router.wake_at - since, 6),
        router.tick(now=since + 100).status,
        [(word.turn, word.status, word.reason) for word in router.drain()],
    ]
    view = router.view(now=since + 101)
    return [*told, view.charge_tokens.tolist(), view.sessions.tolist(), view.now_s - since, router.stats()]


def test_a_snapshot_goes_on_on_another_clock() -> None:
    original = busy_router(policy=policies.Open())
    copy = turnout.Router.restore(original.snapshot(), policy=policies.Open(), now=5_000.0)
    assert isinstance(copy, turnout.Router)
    assert copy.hash_key == original.hash_key
    assert copy.block_tokens == original.block_tokens
    # The clock of the original stood at 5 s when it was taken.
    assert answers(copy, since=5_000.0) == answers(original, since=5.0)
    assert copy.step(now=6_000.0).failures == 0


def test_turns_that_nobody_asks_about_are_given_up() -> None:
    original = busy_router()
    copy = turnout.Router.restore(original.snapshot(), reattach_s=120.0, now=0.0)
    assert copy.wake_at is not None
    assert copy.wake_at <= 120.0
    again = copy.submit(np.arange(0, 500), session="s0", turn="turn-1", now=1.0)
    assert again.placed
    copy.tick(now=121.0)
    given_up = {word.turn: word.reason for word in copy.drain()}
    assert "turn-1" not in given_up
    assert set(given_up.values()) == {"unconfirmed"}
    copy.audit()


def test_damage_is_refused() -> None:
    snapshot = busy_router().snapshot()
    for damaged, problem in [
        (b"", "these 0 bytes are no snapshot"),
        (snapshot[:-1], "checksum differs"),
        (snapshot[:100] + bytes([snapshot[100] ^ 1]) + snapshot[101:], "checksum differs"),
        (snapshot[:8] + b"\x63\x00" + snapshot[10:], "format version 99, accepted is 3"),
    ]:
        with pytest.raises(RecordError, match=problem):
            turnout.Router.restore(damaged)
    with pytest.raises(RecordError, match="no snapshot of a prefix index"):
        turnout.PrefixIndex.restore(snapshot)


def test_an_index_goes_on() -> None:
    index = turnout.PrefixIndex(FLEET)
    history = index.open(np.arange(100), replica=1)
    copy = turnout.PrefixIndex.restore(index.snapshot())
    assert isinstance(copy, turnout.PrefixIndex)
    assert copy.replicas == ("r0", "r1")
    for one in (index, copy):
        one.extend(history, np.arange(60), 0)
        one.fork(history)
    assert copy.snapshot() == index.snapshot()
    assert copy.lookup(np.arange(100)) == index.lookup(np.arange(100)) != []


def test_a_journal_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    router, path = busy_router(), tmp_path / "router.journal"
    with record.JournalWriter(router, path, rotate_bytes=3_000) as journal:
        for at in range(300):
            turn = router.submit(np.arange(at, at + 40), session=f"j{at % 7}", now=10.0 + at)
            router.complete(turn.turn, output=np.arange(20), now=10.5 + at)
            router.drain()
            journal.flush()
    assert [entry.name for entry in tmp_path.iterdir()] == ["router.journal"]
    copy = record.restore(path, now=310.0)
    assert copy.snapshot()[10:-8] == router.snapshot()[10:-8]
    monkeypatch.setattr("sys.argv", ["turnout", "replay", str(path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert "every answer equal" in capsys.readouterr().out
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    assert record.replay(path).torn_bytes > 0
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(RecordError, match="damaged at byte"):
        record.replay(path)  # it is all there: no crash did this
    monkeypatch.setattr("sys.argv", ["turnout", "replay", str(tmp_path / "absent")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "No such file" in capsys.readouterr().err


def test_another_answer_is_told_from_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def recorded(kv_tokens: float) -> tuple[bytes, bytes]:
        router = turnout.Router([turnout.Replica("r", kv_tokens=kv_tokens)], hash_key=bytes(16))
        router.start_journal()
        beginning = router.take_journal()
        router.submit(np.arange(5_000), session="s", now=1.0)
        return beginning, router.take_journal()

    path = tmp_path / "mixed.journal"
    path.write_bytes(recorded(4_000)[0] + recorded(8_000)[1])
    with pytest.raises(AnswerDiffers, match=r"event 1 \(submit"):
        record.restore(path)
    monkeypatch.setattr("sys.argv", ["turnout", "replay", str(path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert "answered otherwise" in capsys.readouterr().err


def test_no_token_of_a_prompt_is_in_a_journal() -> None:
    """But those of partial blocks: fingerprints cannot be turned back."""
    router = turnout.Router(FLEET, hash_key=bytes(16))
    router.start_journal()
    secret = np.full(64, 123_456_789)
    turn = router.submit(secret, session="s", now=0.0)
    router.complete(turn.turn, output=secret, now=1.0)
    router.submit(append=secret, base_tokens=128, session="s", now=2.0)
    journal = router.take_journal()
    assert len(journal) > 96  # twelve blocks of eight bytes
    number, varint = 123_456_789, b""
    while number >= 128:
        varint += bytes([number & 127 | 128])
        number >>= 7
    varint += bytes([number])
    assert varint not in journal
    assert (123_456_789).to_bytes(4, "little") not in journal
