"""What others do with the same prompts: a dictionary in plain Python, and Dynamo's radix tree where it is installed."""

from __future__ import annotations

import contextlib
import importlib
import json
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BLOCK_TOKENS = 16


class Rival(Protocol):
    """An index that can be told who holds a prompt, and asked."""

    name: str

    def insert(self, tokens: NDArray[np.uint32], replica: int) -> None:
        """Say that a replica holds a prompt."""

    def lookup(self, tokens: NDArray[np.uint32]) -> dict[int, int]:
        """Blocks that each replica holds of a prompt."""


class DictIndex:
    """One dictionary from (parent block, bytes of the block) to a block and its holders: an afternoon's work."""

    name = "dict in plain Python"

    def __init__(self) -> None:
        self._blocks: dict[tuple[int, bytes], int] = {}
        self._holders: list[set[int]] = [set()]

    def insert(self, tokens: NDArray[np.uint32], replica: int) -> None:
        """Say that a replica holds a prompt."""
        data, at = tokens.tobytes(), 0
        for start in range(0, len(data) - 4 * BLOCK_TOKENS + 1, 4 * BLOCK_TOKENS):
            key = (at, data[start : start + 4 * BLOCK_TOKENS])
            at = self._blocks.setdefault(key, len(self._holders))
            if at == len(self._holders):
                self._holders.append(set())
            self._holders[at].add(replica)

    def lookup(self, tokens: NDArray[np.uint32]) -> dict[int, int]:
        """Blocks that each replica holds of a prompt."""
        data, at, depth, found = tokens.tobytes(), 0, 0, {}
        for start in range(0, len(data) - 4 * BLOCK_TOKENS + 1, 4 * BLOCK_TOKENS):
            child = self._blocks.get((at, data[start : start + 4 * BLOCK_TOKENS]))
            if child is None:
                break
            at, depth = child, depth + 1
            for replica in self._holders[at]:
                found[replica] = depth
        return found


class DynamoTree:
    """Dynamo's `RadixTree` as its Python bindings offer it: block hashes of a list of tokens, then the tree."""

    name = "Dynamo RadixTree"

    def __init__(self) -> None:
        core: Any = importlib.import_module("dynamo._core")
        self._tree = core.RadixTree()
        self._hash = core.compute_block_hash_for_seq
        self._events = 0

    def insert(self, tokens: NDArray[np.uint32], replica: int) -> None:
        """Say that a replica holds a prompt."""
        blocks = [{"block_hash": h, "tokens_hash": h} for h in self._hash(tokens.tolist(), BLOCK_TOKENS)]
        self._events += 1
        event = {"event_id": self._events, "data": {"stored": {"parent_hash": None, "blocks": blocks}}}
        self._tree.apply_event(replica, json.dumps(event).encode())

    def lookup(self, tokens: NDArray[np.uint32]) -> dict[int, int]:
        """Blocks that each replica holds of a prompt."""
        scores = self._tree.find_matches(self._hash(tokens.tolist(), BLOCK_TOKENS)).scores
        return {worker[0]: blocks for worker, blocks in scores.items()}


def installed() -> list[Rival]:
    """The rivals that can be run here."""
    rivals: list[Rival] = [DictIndex()]
    with contextlib.suppress(ImportError):
        rivals.append(DynamoTree())
    return rivals
