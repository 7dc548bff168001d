"""The configuration file of `turnout serve`: TOML whose sections are the dataclasses of the settings."""

from __future__ import annotations

import dataclasses
import math
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from turnout.config import Replica, Workload
from turnout.errors import InvalidArgument, TurnoutError
from turnout.feeds import Engine
from turnout.server.config import ServeConfig, located, refuse

HIDDEN: Final = "(hidden)"
"""What is shown instead of a token."""

_LISTS: Final = {"engine": "engines", "workload": "workloads"}
"""Sections that may stand several times, and the setting that they fill."""

_NO_SECRET: Final = ("tokens", "_file", "_token", "_per_s")
"""How names end that speak of tokens of text."""

_NOT_SCALAR: Final = {"engines", "workloads", "policy", "policy_arguments"}


def read_settings(path: Path) -> dict[str, Any]:
    """Read a configuration file.

    Sections: `[server]` for the settings of `ServeConfig` that are single values; `[[engine]]` with the fields of
    `turnout.feeds.Engine` (or `engines = ["http://..."]` before the first section); `[[workload]]` with those of
    `turnout.Workload`; `[policy]` with `name` and what the policy's constructor takes; and one section for every other
    group of settings, called like it: `[state]`, `[log]`, `[feeds]`. Paths are relative to the file.

    Args:
        path: The file.

    Returns:
        Keyword arguments of `ServeConfig`: what the file says, nothing else.

    Raises:
        InvalidArgument: It cannot be read, a key is unknown, or a value has another type or is out of range: the
            message names section and key.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        accepted = "a TOML file that can be read"
        message = f"config: got {str(path)!r} ({error}), accepted is {accepted}"
        raise InvalidArgument(message, "config", str(path), accepted) from None
    reader = _Reader(path.parent)
    return reader.settings(table)


class _Reader:
    """Turns tables into what the annotations of dataclasses say."""

    def __init__(self, base: Path) -> None:
        """Keep what paths are relative to."""
        self._base = base

    def settings(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of `ServeConfig` in a whole file."""
        hints = typing.get_type_hints(ServeConfig)
        groups = {name: kind for name, hint in hints.items() if (kind := _dataclass_in(hint)) is not None}
        groups = {name: kind for name, kind in groups.items() if name not in _NOT_SCALAR}
        known = ["server", "policy", *_LISTS, *_LISTS.values(), *groups]
        found: dict[str, Any] = {}
        for section, content in table.items():
            if section in _LISTS.values():
                texts = self.value(content, tuple[str, ...], section)
                found[section] = (*texts, *found.get(section, ()))
            elif section in _LISTS:
                name = _LISTS[section]
                found[name] = (*found.get(name, ()), *self._rows(content, section))
            elif section not in known:
                raise refuse(section, content, f"a section: {', '.join(known)}")
            elif not isinstance(content, dict):
                raise refuse(section, content, f"a section, [{section}]")
            elif section == "policy":
                rest = dict(content)
                found["policy"] = self.value(rest.pop("name", None), str, "policy.name")
                found["policy_arguments"] = rest
            elif section == "server":
                plain = {name: hint for name, hint in hints.items() if name not in {*groups, *_NOT_SCALAR}}
                found.update(self._fields(content, plain, section))
            else:
                found[section] = self.build(groups[section], content, section)
        return found

    def _rows(self, content: object, section: str) -> list[Any]:
        """The tables of a section that may stand several times."""
        if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
            raise refuse(section, content, f"sections, [[{section}]]")
        return [self._row(row, section) for row in content]

    def _row(self, row: dict[str, Any], section: str) -> Engine | Workload:
        if section == "workload":
            made: Workload = self.build(Workload, row, section)
            return made
        row = dict(row)
        if isinstance(row.get("url"), str):
            # As an address given alone: the name is host and port.
            row.setdefault("name", row["url"].partition("://")[2].strip("/") or row["url"])
        if isinstance(row.get("replica"), dict):
            row["replica"] = {"name": row.get("name"), **row["replica"]}
        engine: Engine = self.build(Engine, row, section)
        return engine

    def build(self, kind: type[Any], table: Mapping[str, Any], where: str) -> Any:  # noqa: ANN401 - any dataclass
        """Make a dataclass of a table."""
        arguments = self._fields(table, typing.get_type_hints(kind), where)
        for each in dataclasses.fields(kind):
            needed = each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
            if needed and each.name not in arguments:
                raise refuse(f"{where}.{each.name}", None, _words(typing.get_type_hints(kind)[each.name]))
        try:
            return kind(**arguments)
        except TurnoutError as error:
            raise located(error, where) from None

    def _fields(self, table: Mapping[str, Any], hints: Mapping[str, Any], where: str) -> dict[str, Any]:
        for key, value in table.items():
            if key not in hints:
                shown = HIDDEN if _secret(key) else repr(value)
                accepted = f"a key of [{where}]: {', '.join(hints)}"
                raise InvalidArgument(f"{where}.{key}: got {shown}, accepted is {accepted}", key, shown, accepted)
        return {key: self.value(value, hints[key], f"{where}.{key}") for key, value in table.items()}

    def value(self, value: object, hint: Any, where: str) -> Any:  # noqa: ANN401 - what the annotation says
        """Check one value against its annotation."""
        fits, found = self._convert(value, hint, where)
        if not fits:
            raise refuse(where, HIDDEN if _secret(where) else value, _words(hint))
        return found

    def _convert(self, value: object, hint: Any, where: str) -> tuple[bool, Any]:  # noqa: ANN401 - any annotation
        """Whether a value fits, and what it becomes."""
        origin, inner = typing.get_origin(hint), typing.get_args(hint)
        if origin in {typing.Union, types.UnionType}:
            tried = (self._convert(value, option, where) for option in inner)
            return next((found for found in tried if found[0]), (False, None))
        if origin is Literal:
            return value in inner, value
        if origin in {tuple, dict, Mapping} or dataclasses.is_dataclass(hint):
            return self._container(value, hint, where)
        if hint is Path:
            return (True, self._base / Path(value).expanduser()) if isinstance(value, str) else (False, None)
        if hint in {int, float} and isinstance(value, bool):
            return False, None
        return hint is Any or isinstance(value, (int, float) if hint is float else hint), value

    def _container(self, value: object, hint: Any, where: str) -> tuple[bool, Any]:  # noqa: ANN401 - any annotation
        """The same for lists and tables."""
        origin, inner = typing.get_origin(hint), typing.get_args(hint)
        if not isinstance(value, list if origin is tuple else dict):
            return False, None
        if isinstance(value, list):
            return True, tuple(self.value(each, inner[0], f"{where}[{n}]") for n, each in enumerate(value))
        if isinstance(value, dict) and origin is not None:
            return True, {name: self.value(each, inner[1], f"{where}.{name}") for name, each in value.items()}
        return True, self.build(hint, typing.cast("dict[str, Any]", value), where)


def _secret(key: str) -> bool:
    """Whether a key, mistyped or not, may hold a token."""
    name = key.rpartition(".")[2]
    return "api_key" in name or ("tok" in name and not name.startswith("tokeni") and not name.endswith(_NO_SECRET))


def _dataclass_in(hint: Any) -> type[Any] | None:  # noqa: ANN401 - any annotation
    """The dataclass that an annotation names, by itself or beside None."""
    for option in typing.get_args(hint) or (hint,):
        if dataclasses.is_dataclass(option) and isinstance(option, type):
            return option
    return None


def _words(hint: Any) -> str:  # noqa: ANN401 - any annotation
    """An annotation for people."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in {typing.Union, types.UnionType}:
        return " or ".join(_words(option) for option in inner if option is not type(None))
    if origin is Literal:
        return " or ".join(repr(option) for option in inner)
    if origin is tuple:
        return f"a list, each {_words(inner[0])}"
    if origin in {dict, Mapping} or dataclasses.is_dataclass(hint):
        return "a table"
    words = {str: "text", int: "a whole number", float: "a number", bool: "true or false", Path: "a path"}
    return words.get(hint, str(hint))


def effective(config: ServeConfig) -> dict[str, Any]:
    """All settings as they are in force, by section, the token hidden.

    Args:
        config: The settings.

    Returns:
        Plain values, for JSON.

    Example:
        >>> effective(ServeConfig(token="secret"))["server"]["token"]
        '(hidden)'
    """
    shown: dict[str, Any] = {"server": {}}
    for each in dataclasses.fields(config):
        value = getattr(config, each.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            shown[each.name] = _plain(value)
        elif each.name not in _NOT_SCALAR:
            shown["server"][each.name] = _plain(value)
    if config.token is not None:
        shown["server"]["token"] = HIDDEN
    shown["state"]["directory"] = None if config.directory is None else str(config.directory)
    shown["policy"] = {"name": config.policy, **config.policy_arguments}
    shown["engine"] = [{"url": each} if isinstance(each, str) else _plain(each) for each in config.engines]
    shown["workload"] = [_plain(each) for each in config.workload_list()]
    return shown


def _plain(value: Any) -> Any:  # noqa: ANN401 - any setting
    if isinstance(value, Replica | Workload) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return _plain({each.name: getattr(value, each.name) for each in dataclasses.fields(value)})
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        hidden = {name for name, each in value.items() if _secret(str(name)) and isinstance(each, str)}
        return {str(name): HIDDEN if name in hidden else _plain(each) for name, each in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, bool | int | float | str | None) else str(value)
