"""HAProxy's Stream Processing Offload Protocol, version 2.0: frames and the data in them.

A frame is its length (4 bytes, big-endian), its type, flags (4 bytes), the numbers of stream and frame, then what
it carries. HAProxy describes it in doc/SPOE.txt.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final, TypeAlias

HAPROXY_HELLO, HAPROXY_DISCONNECT, NOTIFY = 1, 2, 3
AGENT_HELLO, AGENT_DISCONNECT, ACK = 101, 102, 103

FINAL: Final = 1
"""The flag of a frame that is whole; others are not agreed to in the greeting."""

Value: TypeAlias = bool | int | str | bytes | IPv4Address | IPv6Address | None

_SET_VARIABLE, _TRANSACTION = 1, 2
_ONE_BYTE, _MORE = 240, 128
_TRUE: Final = 0x10


class BadFrame(ValueError):
    """What came is no frame of this protocol."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame.

    Attributes:
        kind: Its type.
        flags: Its flags.
        stream: Number of HAProxy's stream.
        number: Number of the frame within it.
        payload: What it carries.
    """

    kind: int
    flags: int
    stream: int
    number: int
    payload: bytes


class Reader:
    """Reads the data of a frame from its beginning.

    Args:
        data: The bytes.
        at: Where to begin.

    Raises:
        BadFrame: From every method, when the bytes end too early or say nothing known.
    """

    def __init__(self, data: bytes, at: int = 0) -> None:
        """Nothing read yet."""
        self._data = data
        self.at = at

    @property
    def rest(self) -> bytes:
        """What was not read."""
        return self._data[self.at :]

    def take(self, count: int) -> bytes:
        """So many bytes."""
        taken = self._data[self.at : self.at + count]
        if len(taken) < count:
            raise BadFrame(f"frame: got {len(taken)} bytes where {count} were announced")
        self.at += count
        return taken

    def number(self) -> int:
        """A number of variable length.

        Example:
            >>> [Reader(packed(value)).number() for value in (0, 239, 240, 2_287, 2_288, 2**63)]
            [0, 239, 240, 2287, 2288, 9223372036854775808]
        """
        value = self.take(1)[0]
        if value < _ONE_BYTE:
            return value
        shift = 4
        while True:
            byte = self.take(1)[0]
            value += byte << shift
            shift += 7
            if byte < _MORE:
                return value
            if shift > 70:  # noqa: PLR2004 - ten bytes, more than 64 bits
                raise BadFrame("frame: a number of more than 64 bits")

    def text(self) -> str:
        """A string."""
        return self.take(self.number()).decode("utf-8", "replace")

    def value(self) -> Value:
        """A value with its type."""
        head = self.take(1)[0]
        match head & 0x0F:  # types as the protocol numbers them
            case 0:
                found: Value = None
            case 1:
                found = bool(head & _TRUE)
            case 2 | 3 | 4 | 5:
                found = self.number()
            case 6:
                found = IPv4Address(self.take(4))
            case 7:
                found = IPv6Address(self.take(16))
            case 8:
                found = self.text()
            case 9:
                found = self.take(self.number())
            case kind:
                raise BadFrame(f"frame: a value of type {kind}")
        return found

    def pairs(self, count: int | None = None) -> dict[str, Value]:
        """Names with values: so many, or all that are left."""
        found: dict[str, Value] = {}
        while self.at < len(self._data) if count is None else len(found) < count:
            name = self.text()
            found[name] = self.value()
        return found


def read_frame(data: bytes) -> Frame:
    """Read a frame.

    Args:
        data: Its bytes, without the length.

    Returns:
        The frame.

    Raises:
        BadFrame: They are none.
    """
    reader = Reader(data)
    kind, flags = reader.take(1)[0], int.from_bytes(reader.take(4), "big")
    return Frame(kind, flags, reader.number(), reader.number(), reader.rest)


def write_frame(kind: int, payload: bytes, *, stream: int = 0, number: int = 0) -> bytes:
    """A whole frame with its length, ready to be sent.

    Args:
        kind: Its type.
        payload: What it carries.
        stream: Number of the stream.
        number: Number of the frame.

    Example:
        >>> read_frame(write_frame(ACK, b"x", stream=300, number=2)[4:])
        Frame(kind=103, flags=1, stream=300, number=2, payload=b'x')
    """
    body = bytes([kind]) + FINAL.to_bytes(4, "big") + packed(stream) + packed(number) + payload
    return len(body).to_bytes(4, "big") + body


def messages(payload: bytes) -> list[tuple[str, dict[str, Value]]]:
    """The messages of a NOTIFY frame.

    Args:
        payload: What the frame carries.

    Returns:
        (name, arguments) of each.

    Raises:
        BadFrame: They cannot be read.
    """
    reader, found = Reader(payload), []
    while reader.rest:
        name = reader.text()
        found.append((name, _arguments(reader)))
    return found


def _arguments(reader: Reader) -> dict[str, Value]:
    return reader.pairs(reader.take(1)[0])


def pairs(values: dict[str, Value]) -> bytes:
    """Names with values, as the greeting carries them."""
    return b"".join(_text(name) + typed(value) for name, value in values.items())


def set_variables(values: dict[str, Value]) -> bytes:
    """What an ACK frame carries to set variables of the transaction, below the agent's prefix."""
    head = bytes([_SET_VARIABLE, 3, _TRANSACTION])
    return b"".join(head + _text(name) + typed(value) for name, value in values.items())


def packed(value: int) -> bytes:
    """A number of variable length, 0 to 2^64 - 1."""
    if value < _ONE_BYTE:
        return bytes([value])
    found = bytearray([(value & 0x0F) | _ONE_BYTE])
    value = (value - _ONE_BYTE) >> 4
    while value >= _MORE:
        found.append((value & 0x7F) | _MORE)
        value = (value - _MORE) >> 7
    found.append(value)
    return bytes(found)


def typed(value: Value) -> bytes:
    """A value with its type.

    Example:
        >>> values = (None, True, False, 429, "a", b"a", IPv4Address("10.0.0.1"), IPv6Address("::1"))
        >>> all(Reader(typed(value)).value() == value for value in values)
        True
    """
    if value is None:
        return b"\x00"
    if isinstance(value, bool):
        return bytes([1 | (_TRUE if value else 0)])
    if isinstance(value, int):
        return b"\x05" + packed(value)
    if isinstance(value, str):
        return b"\x08" + _text(value)
    if isinstance(value, bytes):
        return b"\x09" + packed(len(value)) + value
    return (b"\x06" if value.version == 4 else b"\x07") + value.packed  # noqa: PLR2004 - of the internet protocol


def _text(value: str) -> bytes:
    encoded = value.encode()
    return packed(len(encoded)) + encoded
