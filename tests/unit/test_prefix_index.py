"""The prefix index and cache events from Python: what is refused, what real engines said, what batches answer."""

from __future__ import annotations

import array
import base64
import json
import threading
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import turnout
from turnout import PrefixIndex, Replica, errors

if TYPE_CHECKING:
    from collections.abc import Callable

WIRE = Path(__file__).parents[1] / "data" / "wire"
PROMPT = np.arange(64, dtype=np.uint32)


@pytest.fixture
def index() -> PrefixIndex:
    return PrefixIndex([Replica("a", kv_tokens=10_000), Replica("b", kv_tokens=10_000)], hash_key=bytes(16))


def messages(name: str) -> list[tuple[int, bytes]]:
    lines = [json.loads(line) for line in (WIRE / name).read_text(encoding="utf-8").splitlines()]
    kept = [line for line in lines if line.get("sock") != "load"]
    return [(int(line["seq_be8"], 16), base64.b64decode(line["payload_b64"])) for line in kept]


CALLS: dict[str, tuple[Callable[[PrefixIndex, int], object], str]] = {
    "closed handle": (lambda index, h: index.close(h) or index.peek(h), "history"),
    "unknown handle": (lambda index, h: index.extend(h + 1, [1]), "history"),
    "negative handle": (lambda index, _: index.peek(-1), "history"),
    "handle that is no number": (lambda index, _: index.peek("7"), "history"),  # type: ignore[arg-type]
    "handle that is a truth value": (lambda index, _: index.peek(True), "history"),
    "row beyond the fleet": (lambda index, h: index.place(h, 2), "replica"),
    "row of a lost replica": (lambda index, h: index.lose_replica(1) or index.place(h, 1), "replica"),
    "row below 0": (lambda index, _: index.open([1], replica=-1), "replica"),
    "name for a row": (lambda index, _: index.flush("a"), "replica"),  # type: ignore[arg-type]
    "fork behind the end": (lambda index, h: index.fork(h, 65), "at_tokens"),
    "fork inside a block": (lambda index, h: index.fork(h, 17), "at_tokens"),
    "tokens in two dimensions": (lambda index, _: index.lookup(PROMPT.reshape(8, 8)), "tokens"),
    "negative token": (lambda index, h: index.extend(h, [1, -100]), "tokens"),
    "token beyond 32 bits": (lambda index, _: index.open(np.array([1 << 32])), "tokens"),
    "text": (lambda index, _: index.lookup("prompt"), "tokens"),
    "prompt of another key": (lambda index, _: index.lookup(turnout.Prompt([1], hash_key=bytes(15) + b"1")), "tokens"),
    "prompt of other blocks": (
        lambda index, _: index.lookup(turnout.Prompt([1], hash_key=bytes(16), block_tokens=8)),
        "tokens",
    ),
    "offsets that fall": (lambda index, _: index.lookup_batch(PROMPT, np.array([0, 32, 16, 64])), "offsets"),
    "offsets that end early": (lambda index, _: index.lookup_batch(PROMPT, np.array([0, 32])), "offsets"),
    "offsets of another kind": (lambda index, _: index.lookup_batch(PROMPT, np.array([0.0, 64.0])), "offsets"),  # type: ignore[arg-type]
    "no offsets": (lambda index, _: index.lookup_batch(PROMPT, np.array([], np.int64)), "offsets"),
    "handles below 0": (lambda index, _: index.peek_batch(np.array([-1])), "histories"),  # type: ignore[arg-type]
    "payload that is cut off": (lambda index, _: index.kv_events(0, b"\x93\xcb", sequence=0), "payload"),
    "payload of something else": (lambda index, _: index.kv_events(0, b"hello", sequence=0), "payload"),
    "sequence below 0": (lambda index, _: index.kv_events(0, b"", sequence=-1), "sequence"),
    "most below 0": (lambda index, _: index.lookup(PROMPT, most=-1), "most"),
    "name twice": (lambda index, _: index.add_replica(Replica("a")), "replicas"),
    "no capacity": (lambda index, _: index.add_replica(Replica("c", kv_tokens=0)), "kv_tokens"),
    "short key": (lambda _, __: PrefixIndex(hash_key=b"1"), "hash_key"),
    "no blocks": (lambda _, __: PrefixIndex(block_tokens=0), "block_tokens"),
    "little memory": (lambda _, __: PrefixIndex(index_bytes=1_000), "index_bytes"),
}


@pytest.mark.parametrize("case", CALLS)
def test_errors_name_the_argument_and_change_nothing(index: PrefixIndex, case: str) -> None:
    call, argument = CALLS[case]
    history = index.open(PROMPT, replica=0)
    other = index.open(PROMPT, replica=1)
    with pytest.raises(errors.TurnoutError) as caught:
        call(index, history)
    assert caught.value.argument == argument
    assert caught.value.accepted
    assert index.history_tokens(other) == 64
    assert index.stats()["blocks"] == 4
    index.audit()


def test_every_kind_of_tokens_means_the_same(index: PrefixIndex) -> None:
    index.open(PROMPT, replica=0)
    listed = PROMPT.tolist()
    unaligned = np.frombuffer(b"x" + PROMPT.tobytes(), dtype=np.uint8)[1:].view(np.uint32)
    kinds: list[Any] = [
        listed,
        tuple(listed),
        PROMPT.astype(np.int32),
        PROMPT.astype(np.int64),
        PROMPT.astype(np.uint64),
        memoryview(PROMPT),
        array.array("q", listed),
        [np.int64(token) for token in listed],
        unaligned,
        index.prompt(PROMPT),
    ]
    assert all(index.lookup(kind) == [(0, 64)] for kind in kinds)


def test_a_list_that_changes_while_it_is_read(index: PrefixIndex) -> None:
    tokens: list[Any] = list(range(40))

    class Shrinks:
        def __index__(self) -> int:
            del tokens[20:]
            index.lookup([1, 2, 3])  # comes back into the same index
            return 7

    tokens[10] = Shrinks()
    history = index.open(tokens, replica=0)
    assert index.history_tokens(history) == 20
    index.audit()


def test_batches_answer_as_single_calls_do(index: PrefixIndex) -> None:
    handles = [index.open(PROMPT[:n], replica=n % 2) for n in range(0, 64, 3)]
    rows, held = index.peek_batch(np.array(handles, np.uint64), most=2)
    for at, handle in enumerate(handles):
        found = [(row, tokens) for row, tokens in zip(rows[at], held[at], strict=True) if row >= 0]
        assert found == index.holders(handle, most=2)
    offsets = np.array([0, 0, 20, 64])
    rows, held = index.lookup_batch(PROMPT, offsets, most=3)
    assert rows.shape == held.shape == (3, 3)
    for at, (start, end) in enumerate(pairwise(offsets)):
        found = [(row, tokens) for row, tokens in zip(rows[at], held[at], strict=True) if row >= 0]
        assert found == index.lookup(PROMPT[start:end], most=3)
    assert index.peek_batch(np.array([], np.uint64))[0].shape == (0, 1)


def test_threads_share_an_index(index: PrefixIndex) -> None:
    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(300):
            history = index.open(rng.integers(0, 3, 50), replica=seed % 2)
            index.extend(history, rng.integers(0, 3, 20), seed % 2)
            index.lookup_batch(PROMPT, np.array([0, 64]))
            index.close(history)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    index.audit()
    assert index.stats()["histories"] == 0


def test_a_full_index_says_so_and_answers_what_it_has() -> None:
    index = PrefixIndex([Replica("a", kv_tokens=1e9)], index_bytes=1 << 20)
    rng = np.random.default_rng(0)
    histories = [index.open(rng.integers(0, 1 << 30, 200_000), replica=0) for _ in range(12)]
    stats = index.stats()
    assert stats["bytes"] <= 1 << 20
    assert stats["full"] > 0
    assert stats["cut_histories"] > 0
    assert [index.history_tokens(history) for history in histories] == [200_000] * 12
    index.audit()
    for history in histories:
        index.close(history)
    again = index.open(PROMPT, replica=0)
    assert index.peek(again) == (0, 64)


class TestRouterFeed:
    """The same events for the router."""

    def test_an_engine_says_what_it_holds(self) -> None:
        router = turnout.Router([Replica("vllm", kv_tokens=100_000, block_tokens=32)])
        sent = messages("vllm-0.33.0.duplicate-blocks.jsonl")
        for sequence, payload in sent:
            assert router.kv_events("vllm", payload, sequence=sequence, now=1.0).status == "done"
        assert router.view(now=1.0).exact.tolist() == [True]
        assert router.kv_events("vllm", sent[-1][1], sequence=sent[-1][0], now=1.0).status == "duplicate"
        stats = router.stats()
        assert (stats["feed_stored_blocks"], stats["feed_removed_blocks"]) == (264, 202)
        router.audit()
        # A placed turn is expected there until the engine says that it has it. This one never does: nothing is left.
        turn = router.submit(list(range(1_000, 1_200)), now=2.0)
        assert router.peek(list(range(1_000, 1_200)))
        router.complete(turn.turn, now=3.0)
        assert router.peek(list(range(1_000, 1_200))) == []

    def test_a_gap_asks_for_a_replay(self) -> None:
        router = turnout.Router([Replica("vllm", kv_tokens=100_000)])
        sent = messages("vllm-0.33.0.sha256_cbor.bytes-hashes.jsonl")
        assert router.kv_events("vllm", sent[0][1], sequence=0, now=0.0).status == "done"
        missing = router.kv_events("vllm", sent[3][1], sequence=3, now=0.0)
        assert (missing.status, missing.replay_from) == ("gap", 1)
        assert router.view(now=0.0).exact.tolist() == [False]
        for sequence, payload in sent[1:4]:
            assert router.kv_events("vllm", payload, sequence=sequence, now=0.0).replay_from is None
        assert router.view(now=0.0).exact.tolist() == [True]
        router.reset_feed("vllm", next_sequence=9, now=0.0)
        assert router.view(now=0.0).exact.tolist() == [False]
        router.end_feeds("vllm", now=0.0)
        with pytest.raises(errors.UnknownReplica):
            router.kv_events("never", sent[0][1], sequence=0, now=0.0)
        router.audit()
