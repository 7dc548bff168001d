"""Which headers cross the proxy: those of the message, never those of one connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from multidict import CIMultiDict

if TYPE_CHECKING:
    from collections.abc import Iterable

Pairs = list[tuple[bytes, bytes]]

HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Of one connection (RFC 9110, 7.6.1); what `Connection` lists is as well."""

REBUILT: Final = frozenset({b"host", b"content-length", b"expect", b"accept-encoding"})
"""Said anew to the engine: lengths are counted from the body that is sent, and answers must be readable."""

OWN: Final = b"x-turnout-"
NOT_RETURNED: Final = frozenset({b"content-length", b"date", b"server"})


def lower(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by name; of several equal names the first.

    Args:
        pairs: Names in lower case, and values.

    Returns:
        Text; names in lower case.

    Example:
        >>> lower([(b"x-session-id", b"a"), (b"x-session-id", b"b")])
        {'x-session-id': 'a'}
    """
    found: dict[str, str] = {}
    for name, value in pairs:
        found.setdefault(name.decode("latin-1"), value.decode("utf-8", "replace").strip())
    return found


def to_engine(pairs: Iterable[tuple[bytes, bytes]], *, token: bool, api_key: str | None) -> CIMultiDict[str]:
    """What the engine is sent.

    Args:
        pairs: The caller's headers, names in lower case.
        token: Whether `Authorization` is this server's own, so that the engine must not see it.
        api_key: What the engine gets instead; None = the caller's, unless that is this server's own.

    Returns:
        The headers, without a length.

    Example:
        >>> pairs = [(b"te", b"x"), (b"x-a", b"1"), (b"connection", b"x-b"), (b"x-b", b"2")]
        >>> dict(to_engine(pairs, token=True, api_key=None))
        {'x-a': '1', 'Accept-Encoding': 'identity'}
    """
    pairs = list(pairs)
    dropped = HOP_BY_HOP | REBUILT | _listed(pairs)
    if token or api_key is not None:
        dropped |= {b"authorization"}
    kept: CIMultiDict[str] = CIMultiDict()
    for name, value in pairs:
        if name in dropped or name.startswith(OWN):
            continue
        try:
            kept.add(name.decode("ascii"), value.decode("utf-8"))
        except UnicodeDecodeError:
            continue  # it could only be sent on as other bytes
    kept["Accept-Encoding"] = "identity"
    if api_key is not None:
        kept["Authorization"] = f"Bearer {api_key}"
    return kept


def to_caller(pairs: Iterable[tuple[bytes, bytes]]) -> Pairs:
    """What the caller is sent of an engine's headers.

    Args:
        pairs: The engine's headers.

    Returns:
        Without those of the connection, of length and of the server; names in lower case.

    Example:
        >>> to_caller([(b"Content-Type", b"text/plain"), (b"Keep-Alive", b"5")])
        [(b'content-type', b'text/plain')]
    """
    pairs = [(name.lower(), value) for name, value in pairs]
    dropped = HOP_BY_HOP | NOT_RETURNED | _listed(pairs)
    return [pair for pair in pairs if pair[0] not in dropped]


def _listed(pairs: Pairs) -> frozenset[bytes]:
    """What `Connection` names: except what the message could not do without."""
    names = {part.strip().lower() for name, value in pairs if name == b"connection" for part in value.split(b",")}
    return frozenset(names - {b"content-type", b""})
