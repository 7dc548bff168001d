"""The two forms of a message, JSON and msgpack, and token arrays packed as bytes within both.

A packed array is little-endian, 4 bytes per token (8 where the message says `token_bytes: 8`). msgpack carries the
bytes as they are, JSON as base64. 8,192 tokens are 32 kB packed and some 45 kB as numbers; reading them packed costs a
pointer, not 8,192 objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import numpy as np

from turnout.errors import InvalidArgument, InvalidTokens

if TYPE_CHECKING:
    from turnout.server.schema import Tokens

JSON: Final = "application/json"
MSGPACK: Final = "application/msgpack"
ACCEPTED: Final = (JSON, MSGPACK)

LARGEST_TOKEN: Final = 2**32 - 1

T = TypeVar("T")


class Codec:
    """Reads and writes one message type in both forms; decoders are made once.

    Args:
        kind: The struct.

    Example:
        >>> from turnout.server.schema import Progress
        >>> Codec(Progress).decode(b'{"turn": "t", "output_tokens": 3}', JSON).output_tokens
        3
    """

    def __init__(self, kind: type) -> None:
        self._json: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)
        self._msgpack: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(kind)

    def decode(self, body: bytes, media: str) -> Any:  # noqa: ANN401 - an instance of `kind`
        """Read a message.

        Args:
            body: Its bytes.
            media: `JSON` or `MSGPACK`.

        Returns:
            The struct.

        Raises:
            InvalidArgument: It is no such message; `argument` is the path of what was refused.
        """
        try:
            return self._msgpack.decode(body) if media == MSGPACK else self._json.decode(body)
        except msgspec.ValidationError as error:
            message, _, path = str(error).partition(" - at `")
            # msgspec calls a field that is missing or unknown by name in the message, one of a wrong type by path.
            argument = path.rstrip("`").removeprefix("$.") or _quoted(message)
            raise InvalidArgument(f"{argument or 'body'}: {message}", argument or "body", "", message) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"body: {error}, accepted is {media}", "body", "", media) from None


def encode(message: Any, media: str) -> bytes:  # noqa: ANN401 - any struct
    """Write a message.

    Args:
        message: A struct.
        media: `JSON` or `MSGPACK`.

    Returns:
        Its bytes.

    Example:
        >>> from turnout.server.schema import Fork
        >>> encode(Fork(session="a", child="b"), JSON)
        b'{"session":"a","child":"b"}'
    """
    return msgspec.msgpack.encode(message) if media == MSGPACK else msgspec.json.encode(message)


def media_of(header: str | None) -> str:
    """The form that a `Content-Type` names.

    Args:
        header: Its value; None = JSON.

    Returns:
        `JSON` or `MSGPACK`; the value itself when it is neither.

    Example:
        >>> media_of("application/json; charset=utf-8"), media_of("application/x-msgpack")
        ('application/json', 'application/msgpack')
    """
    if header is None:
        return JSON
    media = header.partition(";")[0].strip().lower()
    return MSGPACK if media in {"application/x-msgpack", "application/vnd.msgpack"} else media or JSON


def unpack_tokens(tokens: Tokens | None, token_bytes: int, argument: str) -> Any:  # noqa: ANN401 - as Router takes them
    """Tokens of a message, as the router takes them; packed ones are not copied.

    Args:
        tokens: Numbers, or packed bytes.
        token_bytes: 4 or 8.
        argument: Name of the field, for the error.

    Returns:
        A list, an array, or None.

    Raises:
        InvalidTokens: The bytes are no whole number of tokens.

    Example:
        >>> unpack_tokens(pack_tokens([1, 2, 3]), 4, "prompt").tolist()
        [1, 2, 3]
    """
    if not isinstance(tokens, bytes):
        return tokens
    if len(tokens) % token_bytes:
        shown, accepted = f"{len(tokens)} bytes", f"a multiple of {token_bytes} bytes"
        raise InvalidTokens(f"{argument}: got {shown}, accepted is {accepted}", argument, shown, accepted)
    return np.frombuffer(tokens, "<u4" if token_bytes == 4 else "<u8")  # noqa: PLR2004 - bytes of a u32


def pack_tokens(tokens: Any, argument: str = "prompt") -> bytes | None:  # noqa: ANN401 - as Router takes them
    r"""Token ids as packed little-endian u32.

    Args:
        tokens: A 1-D buffer of integers, a list or tuple of int, or None.
        argument: Name of the argument, for the error.

    Returns:
        4 bytes per token; None for None.

    Raises:
        InvalidTokens: Something is not an integer in 0..2^32 - 1, or there is more than one dimension.

    Example:
        >>> pack_tokens([1, 2])
        b'\x01\x00\x00\x00\x02\x00\x00\x00'
    """
    if tokens is None:
        return None
    accepted = "a 1-D sequence of integers in 0..4294967295"
    try:
        array = np.asarray(tokens)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InvalidTokens(f"{argument}: {error}, accepted is {accepted}", argument, "", accepted) from None
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size) or isinstance(tokens, (bytes, bytearray, str)):
        shown = f"{array.ndim}-D {array.dtype}"
        raise InvalidTokens(f"{argument}: got {shown}, accepted is {accepted}", argument, shown, accepted)
    if array.dtype != np.dtype("<u4"):
        bad = np.flatnonzero((array < 0) | (array > LARGEST_TOKEN))
        if bad.size:
            at, shown = int(bad[0]), str(array[bad[0]])
            raise InvalidTokens(f"{argument}[{at}]: got {shown}, accepted is {accepted}", argument, shown, accepted)
        array = array.astype("<u4")
    return array.tobytes()


def _quoted(message: str) -> str:
    """The field that a message of msgspec quotes, else nothing."""
    parts = message.split("`")
    return parts[1] if "field" in message and len(parts) > 2 else ""  # noqa: PLR2004 - before, quoted, after
