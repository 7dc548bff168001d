"""Whose request it is: session, workload and the rest, from headers, body or a function of the user's."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

from turnout.errors import InvalidArgument

if TYPE_CHECKING:
    from turnout.server.proxy_config import ProxyConfig

Classify = Callable[[Mapping[str, str], Mapping[str, Any]], "Identity | Mapping[str, Any] | None"]

LONGEST_NAME: Final = 1024
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Whose request it is. A function of the user's returns one, or a mapping with some of the fields, or None.

    Attributes:
        session: The session; None = as the prompt says.
        workload: The workload; None = the session's, or the first one.
        parent: The session that waits for this one.
        group: Turns of one prompt that are wanted together.
        namespace: Beside model, adapter and salt: what makes equal tokens unequal caches.
        priority: Order among the held turns of the workload, highest first.
    """

    session: str | None = None
    workload: str | None = None
    parent: str | None = None
    group: str | None = None
    namespace: str | None = None
    priority: int | None = None


_FIELDS: Final = tuple(each.name for each in fields(Identity))


def load_classify(name: str) -> Classify:
    """Import a function of the user's.

    Args:
        name: `package.module:function`.

    Returns:
        The function.

    Raises:
        InvalidArgument: There is none of this name.

    Example:
        >>> load_classify("operator:length_hint")(["a"], 0)
        1
    """
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        accepted = "package.module:function of something that can be imported"
        raise InvalidArgument(
            f"classify: got {name!r} ({error}), accepted is {accepted}", "classify", name, accepted
        ) from error
    if not callable(found):
        raise InvalidArgument(f"classify: got {name!r}, which is no function", "classify", name, "a function")
    call: Classify = found
    return call


def field_at(body: Mapping[str, Any], path: str) -> Any:  # noqa: ANN401 - whatever JSON holds
    """What stands in a body at a path.

    Args:
        body: The body.
        path: Names, joined by dots.

    Returns:
        The value; None where there is none.

    Example:
        >>> field_at({"metadata": {"session_id": "s"}}, "metadata.session_id")
        's'
    """
    found: Any = body
    for part in path.split("."):
        if not isinstance(found, dict):
            return None
        found = found.get(part)
    return found


class Identify:
    """Finds out whose a request is.

    Args:
        config: Where to look.

    Raises:
        InvalidArgument: The function of the user's cannot be imported.

    Example:
        >>> from turnout.server.proxy_config import ProxyConfig
        >>> who = Identify(ProxyConfig())({"x-session-id": "s", "x-turnout-workload": "agent"}, {})
        >>> who.session, who.workload
        ('s', 'agent')
    """

    def __init__(self, config: ProxyConfig) -> None:
        self._headers = config.session_headers
        self._session_fields = config.session_fields
        self._classify = None if config.classify is None else load_classify(config.classify)
        self.failures = 0

    def __call__(self, headers: Mapping[str, str], body: Mapping[str, Any]) -> Identity:
        """Look at a request.

        Args:
            headers: Its headers, names in lower case.
            body: Its body.

        Returns:
            Whose it is. What the user's function says goes before headers, headers go before the body.

        Raises:
            InvalidArgument: A name is too long, or a priority is no whole number.
        """
        session = next((name for header in self._headers if (name := headers.get(header))), None)
        if session is None:
            session = next((str(name) for path in self._session_fields if _is_name(name := field_at(body, path))), None)
        found = Identity(
            session=session,
            workload=_said("workload", headers, body),
            parent=_said("parent", headers, body),
            group=_said("group", headers, body),
            namespace=_said("namespace", headers, body),
            priority=_number(_said("priority", headers, body)),
        )
        if self._classify is not None:
            found = self._ask(self._classify, found, headers, body)
        for name in ("session", "workload", "parent", "group", "namespace"):
            value = getattr(found, name)
            if value is not None and len(value) > LONGEST_NAME:
                accepted = f"at most {LONGEST_NAME} characters"
                raise InvalidArgument(
                    f"{name}: got {len(value)} characters, accepted is {accepted}", name, "", accepted
                )
        return found

    def _ask(
        self, classify: Classify, found: Identity, headers: Mapping[str, str], body: Mapping[str, Any]
    ) -> Identity:
        """Ask the user's function. A request goes on without it when it fails: it only says how to route."""
        try:
            return _with(found, classify(headers, body))
        except Exception:  # noqa: BLE001 - the user's function may raise anything
            self.failures += 1
            _LOG.exception("the function that says whose a request is has failed; the request goes on without it")
            return found


def _with(found: Identity, said: Identity | Mapping[str, Any] | None) -> Identity:
    """What was found, where the user's function did not say otherwise."""
    if said is None:
        return found
    values = {name: getattr(said, name) for name in _FIELDS} if isinstance(said, Identity) else dict(said.items())
    given = {name: value for name, value in values.items() if value is not None}
    for name, value in given.items():
        if name not in _FIELDS or not isinstance(value, int if name == "priority" else str):
            accepted = f"{', '.join(_FIELDS)}; names and a whole number"
            raise InvalidArgument(
                f"classify: got {name}={value!r}, accepted are {accepted}", "classify", name, accepted
            )
    return replace(found, **given)


def _is_name(value: object) -> bool:
    return isinstance(value, (str, int)) and not isinstance(value, bool) and value != ""


def _said(name: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> str | None:
    """`X-Turnout-<Name>`, else `metadata.turnout_<name>`."""
    said: Any = headers.get(f"x-turnout-{name}")
    if said is None:
        said = field_at(body, f"metadata.turnout_{name}")
    return str(said) if _is_name(said) else None


def _number(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        accepted = "a whole number"
        raise InvalidArgument(f"priority: got {text!r}, accepted is {accepted}", "priority", text, accepted) from None
