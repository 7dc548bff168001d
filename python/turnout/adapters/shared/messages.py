"""What goes between the actor and its clients: plain values that every process can read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from turnout._core import Prompt
from turnout.errors import InvalidTokens

if TYPE_CHECKING:
    from turnout._core import Decision

Operation: TypeAlias = "tuple[str, dict[str, Any]]"
"""Name and keyword arguments of an event; token arrays are packed, see `pack_tokens`."""

Answer: TypeAlias = Any
"""A `Placement`, the status of an outcome, a list, or the error that the event raised."""

LARGEST_TOKEN: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Placement:
    """A decision, without the parts that stay with the router.

    Attributes:
        turn: Id of the turn.
        attempt: The attempt that this is about.
        status: `placed`, `held`, `rejected`, `expired` or `lost`.
        replica: The replica to send it to (placed), or as for `turnout.Decision`.
        cached_tokens: Prompt tokens judged to be in its cache.
        alternatives: Other replicas that would have taken it, cheapest first.
        reason: Why, from the closed list of `turnout.Decision.reason`.
        prompt_tokens: Prompt length, tokens.

    Example:
        >>> from turnout import Replica, Router
        >>> decision = Router([Replica("r0", kv_tokens=1_000)]).submit([1, 2, 3], turn="t", now=0.0)
        >>> Placement.of(decision).replica
        'r0'
    """

    turn: str
    attempt: int
    status: str
    replica: str | None
    cached_tokens: int
    alternatives: tuple[str, ...]
    reason: str
    prompt_tokens: int

    @classmethod
    def of(cls, decision: Decision) -> Placement:
        """The same decision as plain values.

        Args:
            decision: A decision of the router.

        Returns:
            It, for another process.
        """
        return cls(
            decision.turn,
            decision.attempt,
            decision.status,
            decision.replica,
            decision.cached_tokens,
            decision.alternatives,
            decision.reason,
            decision.receipt.prompt_tokens,
        )

    @property
    def placed(self) -> bool:
        """Send it to `replica` now."""
        return self.status == "placed"


@dataclass(frozen=True, slots=True)
class Hello:
    """What a client asks once.

    Attributes:
        hash_key: The 16 secret bytes that key the fingerprints.
        block_tokens: Tokens per index block.
        instance: Changes whenever the actor starts anew.
    """

    hash_key: bytes
    block_tokens: int
    instance: str


def pack_tokens(tokens: Any, argument: str) -> bytes:  # noqa: ANN401 - tokens, as Router takes them
    r"""Token ids as little-endian bytes, 4 per token.

    Args:
        tokens: A 1-D buffer of integers, or a list or tuple of int.
        argument: Name of the argument, for the error.

    Returns:
        The bytes.

    Raises:
        InvalidTokens: Something is not an integer in 0..2^32 - 1, or there is more than one dimension.

    Example:
        >>> pack_tokens([1, 2], "output")
        b'\x01\x00\x00\x00\x02\x00\x00\x00'
    """
    accepted = "a 1-D sequence of integers in 0..4294967295"
    try:
        array = np.asarray(tokens)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InvalidTokens(f"{argument}: {error}, accepted is {accepted}", argument, "", accepted) from None
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        shown = f"{array.ndim}-D {array.dtype}"
        raise InvalidTokens(f"{argument}: got {shown}, accepted is {accepted}", argument, shown, accepted)
    bad = np.flatnonzero((array < 0) | (array > LARGEST_TOKEN))
    if bad.size:
        at, shown = int(bad[0]), str(array[bad[0]])
        raise InvalidTokens(f"{argument}[{at}]: got {shown}, accepted is {accepted}", argument, shown, accepted)
    return array.astype("<u4").tobytes()


def unpacked(arguments: dict[str, Any], hash_key: bytes) -> dict[str, Any]:
    """The arguments of an event as the router takes them.

    Args:
        arguments: Those of an operation.
        hash_key: The router's key.

    Returns:
        The same, with prompts and tokens read.

    Raises:
        InvalidTokens: A prompt was hashed with another key.
    """
    prompt = arguments.get("prompt")
    if isinstance(prompt, bytes):
        arguments["prompt"] = Prompt.unpack(prompt, hash_key=hash_key)
    for name in ("append", "output"):
        packed = arguments.get(name)
        if isinstance(packed, bytes):
            arguments[name] = np.frombuffer(packed, "<u4")
    return arguments
