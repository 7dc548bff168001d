"""The prefix index from Python against sets of blocks: forks, eviction, loss, namespaces and engine events, mixed."""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from turnout import PrefixIndex, Replica

BLOCK = 2
FED = 2
"""Row of the replica whose engine reports its cache."""
TOKENS = st.lists(st.integers(0, 1), max_size=12)
Path = tuple[int, ...]
Space = tuple[str, int]


def pack(value: object) -> bytes:
    """A value in msgpack: enough of it for a batch of events."""
    match value:
        case None:
            return b"\xc0"
        case float():
            return b"\xcb" + struct.pack(">d", value)
        case int():
            return b"\xcf" + struct.pack(">Q", value)
        case str():
            return bytes([0xA0 | len(value)]) + value.encode()
        case list():
            return b"\xdc" + struct.pack(">H", len(value)) + b"".join(map(pack, value))
    raise TypeError(value)


def engine_hash(path: Path) -> int:
    """How the engine calls the block that ends here."""
    return hash(path) & (2**64 - 1)


def blocks(path: Path) -> list[Path]:
    return [path[:end] for end in range(BLOCK, len(path) + 1, BLOCK)]


@dataclass
class Cache:
    """What one replica holds: by block, when it was used last."""

    capacity: int | None
    used: dict[tuple[Space, Path], int] = field(default_factory=dict)
    copies: Counter[Path] = field(default_factory=Counter)
    fed: bool = False
    clock: int = 0

    def hold(self, space: Space, path: Path) -> None:
        if self.fed:
            return
        self.clock += 1
        for block in blocks(path):
            self.used[space, block] = self.clock
        while self.capacity is not None and len(self.used) > self.capacity:
            del self.used[min(self.used, key=lambda entry: (self.used[entry], -len(entry[1])))]

    def depth(self, space: Space, path: Path) -> int:
        count = 0
        for block in blocks(path):
            held = self.copies[block] > 0 and space[0] == "" if self.fed else (space, block) in self.used
            if not held:
                break
            count += 1
        return count * BLOCK


class PrefixIndexLaws(RuleBasedStateMachine):
    """One index, three replicas, two namespaces."""

    histories = Bundle("histories")
    rows = st.one_of(st.none(), st.integers(0, 2))

    @initialize(bounded=st.booleans(), feeding=st.booleans())
    def make(self, *, bounded: bool, feeding: bool) -> None:
        self.bounded, self.feeding = bounded, feeding
        capacity = 5 if bounded else None
        tokens = float("inf") if capacity is None else capacity * BLOCK
        self.index = PrefixIndex([Replica(f"r{at}", kv_tokens=tokens) for at in range(3)], block_tokens=BLOCK)
        self.caches = {at: Cache(capacity) for at in range(3)}
        self.open: dict[int, tuple[Space, Path]] = {}
        self.generation = Counter[str]()
        self.sequence = 0

    def hold(self, handle: int, row: int | None) -> None:
        if row in self.caches:
            self.caches[row].hold(*self.open[handle])

    def row(self, row: int | None) -> int | None:
        return row if row in self.caches else None

    @rule(target=histories, tokens=TOKENS, row=rows, name=st.sampled_from(["", "adapter"]))
    def open_one(self, tokens: list[int], row: int | None, name: str) -> int:
        return self.open_history(tokens, row, name)

    def open_history(self, tokens: list[int], row: int | None, name: str) -> int:
        row = self.row(row)
        handle = self.index.open(np.array(tokens, np.uint32), replica=row, namespace=name)
        self.open[handle] = ((name, self.generation[name]), tuple(tokens))
        self.hold(handle, row)
        return handle

    @rule(handle=histories, tokens=TOKENS, row=rows)
    def extend(self, handle: int, tokens: list[int], row: int | None) -> None:
        row = self.row(row)
        space, path = self.open[handle]
        assert self.index.extend(handle, tokens, row) == len(path) + len(tokens)
        self.open[handle] = (space, path + tuple(tokens))
        self.hold(handle, row)

    @rule(target=histories, handle=histories, blocks_kept=st.integers(0, 4))
    def fork(self, handle: int, blocks_kept: int) -> int:
        space, path = self.open[handle]
        cut = blocks_kept * BLOCK
        cut = min(cut, len(path))
        child = self.index.fork(handle, cut)
        self.open[child] = (space, path[:cut])
        return child

    @rule(handle=consumes(histories))
    def close(self, handle: int) -> None:
        self.index.close(handle)
        del self.open[handle]

    @rule(handle=histories, row=st.integers(0, 2))
    def place(self, handle: int, row: int) -> None:
        if row in self.caches:
            self.index.place(handle, row)
            self.hold(handle, row)

    @rule(row=st.integers(0, 1))
    def flush(self, row: int) -> None:
        if row in self.caches:
            self.index.flush(row)
            self.caches[row].used.clear()

    @rule()
    def lose_the_second(self) -> None:
        if 1 in self.caches:
            self.index.lose_replica(1)
            del self.caches[1]

    @precondition(lambda self: not (self.bounded or self.feeding))
    @rule(handle=histories)
    def drop_namespace(self, handle: int) -> None:
        """What is swept when cannot be seen from outside, but for the room it leaves: hence without a bound."""
        (name, generation), _ = self.open[handle]
        if generation == self.generation[name]:
            assert self.index.drop_namespace(name)
            assert not self.index.drop_namespace(name)
            self.generation[name] += 1

    @precondition(lambda self: self.feeding)
    @rule(
        target=histories,
        stored=st.lists(st.tuples(st.lists(st.integers(0, 1), max_size=8), st.integers(0, 3)), max_size=3),
        removed=st.integers(0, 5),
        clear=st.booleans(),
    )
    def engine_events(self, stored: list[tuple[list[int], int]], removed: int, *, clear: bool) -> object:
        cache, events = self.caches[FED], []
        if not cache.fed:
            cache.fed = True
            cache.used.clear()
        if clear and self.sequence % 3 == 0:
            cache.copies.clear()
            events.append(["AllBlocksCleared"])
        for tokens, known in stored:
            path = tuple(tokens[: len(tokens) // BLOCK * BLOCK])
            chain = blocks(path)
            skipped = min(known, len(chain))
            parent = chain[skipped - 1] if skipped else None
            if parent is None or cache.copies[parent] > 0:
                cache.copies.update(chain[skipped:])
            hashes = [engine_hash(block) for block in chain[skipped:]]
            ids = list(path[skipped * BLOCK :])
            events.append(
                ["BlockStored", hashes, None if parent is None else engine_hash(parent), ids, BLOCK, None, "GPU"]
            )
        for block in sorted(block for block, copies in cache.copies.items() if copies > 0)[:removed]:
            cache.copies[block] -= 1
            events.append(["BlockRemoved", [engine_hash(block)], "GPU"])
        payload = pack([1.5, events, 0])
        assert self.index.kv_events(FED, payload, sequence=self.sequence) is None
        self.sequence += 1
        assert self.index.kv_events(FED, payload, sequence=self.sequence + 1) == self.sequence, "a gap is not applied"
        self.close_gap()
        # Histories of what was stored, so that there is somebody to ask about.
        return multiple(*(self.open_history(tokens, None, "") for tokens, _ in stored))

    def close_gap(self) -> None:
        """Nothing happened in the batches that were missing."""
        empty = pack([1.5, [], 0])
        for _ in range(2):
            assert self.index.kv_events(FED, empty, sequence=self.sequence) is None
            self.sequence += 1

    @rule()
    def go_on_from_a_snapshot(self) -> None:
        snapshot = self.index.snapshot()
        self.index = PrefixIndex.restore(snapshot)
        assert self.index.snapshot() == snapshot

    @invariant()
    def answers_are_those_of_the_sets(self) -> None:
        if not hasattr(self, "index"):
            return
        self.index.audit()
        for handle, (space, path) in self.open.items():
            expected = {row: depth for row, cache in self.caches.items() if (depth := cache.depth(space, path))}
            if space[1] != self.generation[space[0]]:
                expected = {}  # the namespace was dropped
            found = self.index.holders(handle)
            assert dict(found) == expected
            assert [held for _, held in found] == sorted(expected.values(), reverse=True)
            first = self.index.peek(handle)
            assert first == (found[0] if found else None)
            if space[1] == self.generation[space[0]]:
                assert dict(self.index.lookup(list(path), namespace=space[0])) == expected
        if self.open:
            handles = np.array(list(self.open), np.uint64)
            rows, held = self.index.peek_batch(handles, 2)
            for at, handle in enumerate(self.open):
                pairs = [(row, tokens) for row, tokens in zip(rows[at], held[at], strict=True) if row >= 0]
                assert pairs == self.index.holders(handle, 2)


TestPrefixIndexLaws = PrefixIndexLaws.TestCase
TestPrefixIndexLaws.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
