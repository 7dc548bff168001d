"""The prefix index by itself, for routers that decide on their own: who holds how much of a token sequence."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Self

import numpy as np

from turnout import _core

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from turnout.config import Replica


class PrefixIndex(_core.PrefixIndex):
    """Says which replicas hold the longest prefix of a prompt or of a session's history.

    Replicas are row numbers in the order of `replicas`; histories are handles, plain integers. A history grows by
    `extend`, forks by `fork` and ends with `close`; asking who holds it reads none of its tokens. What a replica holds
    is bounded by its `kv_tokens`, least recently used first, or follows the events of its engine.

    Args:
        replicas: The fleet at the start; may be empty.
        hash_key: 16 secret bytes that key the fingerprints; drawn at random by default.
        block_tokens: Tokens per block, 1..4096.
        index_bytes: Most memory, bytes, at least 2^20. Then the coldest blocks go, and at last nothing new is indexed.

    Raises:
        InvalidArgument: A value is out of range, or a name stands twice.

    Example:
        >>> from turnout import PrefixIndex, Replica
        >>> index = PrefixIndex([Replica("a", kv_tokens=100_000), Replica("b", kv_tokens=100_000)])
        >>> history = index.open(range_tokens := list(range(64)), replica=1)
        >>> index.lookup(range_tokens + [7] * 16)
        [(1, 64)]
        >>> index.extend(history, [9] * 16, 1), index.peek(history)
        (80, (1, 80))
    """

    def __new__(
        cls,
        replicas: Iterable[Replica] = (),
        *,
        hash_key: bytes | None = None,
        block_tokens: int = 16,
        index_bytes: int = 4 << 30,
    ) -> Self:
        """Make the index."""
        key = secrets.token_bytes(16) if hash_key is None else hash_key
        return super().__new__(cls, replicas, hash_key=key, block_tokens=block_tokens, index_bytes=index_bytes)

    @classmethod
    def restore(cls, snapshot: bytes) -> Self:
        """Make an index that goes on where a snapshot was taken: the same calls get the same answers.

        Args:
            snapshot: What `snapshot` returned, with the handles of its histories and the names of its replicas.

        Raises:
            RecordError: It is no snapshot of an index, is of another version, or is damaged.

        Example:
            >>> from turnout import PrefixIndex, Replica
            >>> index = PrefixIndex([Replica("a", kv_tokens=100_000)])
            >>> history = index.open(list(range(64)), replica=0)
            >>> PrefixIndex.restore(index.snapshot()).peek(history)
            (0, 64)
        """
        return _core.PrefixIndex.__new__(cls, (), hash_key=bytes(16), record=snapshot)

    def lookup_batch(
        self, tokens: object, offsets: NDArray[np.int64], *, namespace: str = "", most: int = 8
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Look up many prompts in one call, without the interpreter's lock.

        Args:
            tokens: The prompts one after another, as for `lookup`.
            offsets: (N + 1,) int64: where each prompt begins, and the end of the last.
            namespace: Namespace of the prompts.
            most: Replicas to answer for each.

        Returns:
            Rows (N, most), int32, deepest first, -1 where fewer replicas hold anything; and the tokens held, int64.

        Raises:
            InvalidTokens: Something is not a token.
            InvalidArgument: The offsets do not rise from 0 to the number of tokens.

        Example:
            >>> import numpy as np
            >>> from turnout import PrefixIndex, Replica
            >>> index = PrefixIndex([Replica("a", kv_tokens=100_000)])
            >>> _ = index.open(np.arange(32), replica=0)
            >>> rows, held = index.lookup_batch(np.arange(48), np.array([0, 16, 48]), most=1)
            >>> rows.ravel().tolist(), held.ravel().tolist()
            ([0, -1], [16, 0])
        """
        rows, held = self.raw_lookup_batch(tokens, offsets, namespace=namespace, most=most)
        return _table(rows, held, most)

    def peek_batch(self, histories: NDArray[np.uint64], most: int = 1) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Ask who holds many histories, in one call.

        Args:
            histories: (N,) uint64: handles.
            most: Replicas to answer for each.

        Returns:
            As `lookup_batch`.

        Raises:
            InvalidArgument: A history was closed, or is no handle.
        """
        rows, held = self.raw_peek_batch(histories, most)
        return _table(rows, held, most)


def _table(rows: bytes, held: bytes, most: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    if most == 0:
        return np.empty((0, 0), np.int32), np.empty((0, 0), np.int64)
    return np.frombuffer(rows, np.int32).reshape(-1, most), np.frombuffer(held, np.int64).reshape(-1, most)
