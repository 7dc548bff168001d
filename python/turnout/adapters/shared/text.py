"""Prompts of hosts that know messages and no tokens."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

WORD_BYTES: Final = 4
"""Bytes of text per unit: about what a token of English has."""


def text_units(messages: Iterable[Mapping[str, Any]]) -> np.ndarray:
    """Messages as units of four bytes, in the place of token ids.

    Every message begins at a whole unit, so that a conversation that goes on begins with the units that it had. Texts
    are compared, lengths are about right; the namespace should name the model.

    Args:
        messages: As in a request for a chat completion.

    Returns:
        (N,) uint32: for `turnout.Router.submit`; at least one unit.

    Example:
        >>> first = [{"role": "user", "content": "Hello"}]
        >>> both = [*first, {"role": "assistant", "content": "Hi"}]
        >>> units = text_units(first)
        >>> text_units(both)[: len(units)].tolist() == units.tolist()
        True
    """
    parts = []
    for message in messages:
        text = json.dumps(message, sort_keys=True, ensure_ascii=False, default=str).encode()
        parts.append(text + bytes(-len(text) % WORD_BYTES))
    return np.frombuffer(b"".join(parts) or bytes(WORD_BYTES), "<u4")
