"""What `check_policy` raises, and how a scenario is written as Python code that runs."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from turnout.config import Replica, Workload
from turnout.policies import FleetView
from turnout.testing.tables import columns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PUBLIC: Final = {Replica: "turnout", Workload: "turnout", FleetView: "turnout.policies"}
_WIDTH: Final = 100


class PolicyViolation(AssertionError):
    """A policy breaks a law.

    Args:
        law: Name of the law.
        numbers: What was found, with its numbers.
        code: Python code that fails in the same way; empty where a law was called by hand.

    Example:
        >>> from turnout.testing.laws import stays_within_capacity
        >>> from turnout.policies import Limits
        >>> class Greedy:
        ...     def limits(self, view, last):
        ...         return Limits(ceiling_tokens=2 * view.kv_tokens)
        >>> try:
        ...     stays_within_capacity(Greedy, view=FleetView.build(["r0"], ["agent"], kv_tokens=1_000))
        ... except PolicyViolation as violation:
        ...     print(violation)
        stays_within_capacity: ceiling_tokens[r0] is 2000, the replica has 1000
    """

    def __init__(self, law: str, numbers: str, code: str = "") -> None:
        super().__init__(law, numbers, code)
        self.law = law
        self.numbers = numbers
        self.code = code

    def __str__(self) -> str:
        told = f"{self.law}: {self.numbers}"
        return f"{told}\n\nThis code does it again:\n\n{self.code}" if self.code else told


def code_for(check: Callable[..., None], policy: object, scenario: Mapping[str, Any]) -> str:
    """Write the call of a law as a script.

    Args:
        check: The law.
        policy: What `check_policy` was given; the script imports it where that is possible, and else expects it under
            the name `make_policy`.
        scenario: Arguments of the law.

    Returns:
        The script.

    Example:
        >>> from turnout.policies import Open
        >>> from turnout.testing.laws import stays_within_capacity
        >>> print(code_for(stays_within_capacity, Open, {"view": FleetView.build(["r0"], ["a"], held_new=3)}))
        from turnout.policies import FleetView
        from turnout.policies.open import Open as make_policy
        from turnout.testing.laws import stays_within_capacity
        <BLANKLINE>
        view = FleetView.build(["r0"], ["a"], held_new=3)
        stays_within_capacity(make_policy, view=view)
        <BLANKLINE>
    """
    writer = _Writer()
    lines = [f"{name} = {writer.write(value)}" for name, value in scenario.items()]
    arguments = "".join(f", {name}={name}" for name in scenario)
    writer.need(check.__module__, check.__name__)
    lines.append(f"{check.__name__}(make_policy{arguments})")
    found = _importable(policy)
    if found:
        writer.need(found[0], f"{found[1]} as make_policy")
    else:
        lines.insert(0, f"# make_policy is what check_policy was given: {type(policy).__name__} {_short(policy)}")
    return "\n".join([*writer.imports(), "", *lines, ""])


def _importable(policy: object) -> tuple[str, str] | None:
    """Module and name under which a script finds the class, function or instance; None where it cannot."""
    given = policy
    if not isinstance(policy, type) and not hasattr(policy, "__qualname__"):
        if getattr(policy, "__dict__", None):
            return None  # made with arguments that the script does not know
        given = type(policy)
    module, name = getattr(given, "__module__", ""), getattr(given, "__qualname__", "")
    known = module != "__main__" and getattr(sys.modules.get(module), name, None) is given
    return (module, name) if known else None


def _short(policy: object) -> str:
    shown = getattr(policy, "__qualname__", None) or repr(policy)
    return " ".join(str(shown).split())[:80]


def _wrapped(head: str, items: list[str], tail: str) -> str:
    """On one line where that is short, else one item a line."""
    flat = f"{head}{', '.join(items)}{tail}"
    if len(flat) <= _WIDTH and "\n" not in flat:
        return flat
    inside = "".join("    " + item.replace("\n", "\n    ") + ",\n" for item in items)
    return f"{head}\n{inside}{tail.lstrip(',')}"


class _Writer:
    """Values to expressions; remembers what the expressions need imported."""

    def __init__(self) -> None:
        self._needed: dict[str, set[str]] = {}

    def need(self, module: str, name: str) -> None:
        self._needed.setdefault(module, set()).add(name)

    def imports(self) -> list[str]:
        # The standard library first, as formatters want it.
        order = sorted(self._needed.items(), key=lambda item: (item[0] != "math", item[0]))
        return [f"from {module} import {', '.join(sorted(names))}" for module, names in order]

    def write(self, value: Any) -> str:  # noqa: ANN401 - any value of a scenario
        if isinstance(value, FleetView):
            return self._view(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._record(value)
        if isinstance(value, (tuple, list)):
            return self._sequence([self.write(item) for item in value], "()" if isinstance(value, tuple) else "[]")
        if isinstance(value, str):
            return json.dumps(value)
        if isinstance(value, float):
            return self._number(value)
        return repr(value)

    def _sequence(self, items: list[str], brackets: str) -> str:
        comma = "," if brackets == "()" and len(items) == 1 else ""
        return _wrapped(brackets[0], items, comma + brackets[1])

    def _number(self, value: float) -> str:
        if math.isfinite(value):
            return str(int(value)) if value == int(value) else repr(value)
        self.need("math", "nan" if math.isnan(value) else "inf")
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"

    def _call(self, kind: type, arguments: list[str]) -> str:
        self.need(_PUBLIC.get(kind, kind.__module__), kind.__name__)
        return _wrapped(f"{kind.__name__}{'.build' if kind is FleetView else ''}(", arguments, ")")

    def _record(self, value: Any) -> str:  # noqa: ANN401 - a dataclass
        arguments = []
        for entry in dataclasses.fields(value):
            own = getattr(value, entry.name)
            if entry.default is dataclasses.MISSING:
                arguments.append(self.write(own))
            elif own != entry.default and not (own != own and entry.default != entry.default):  # noqa: PLR0124 - NaN
                arguments.append(f"{entry.name}={self.write(own)}")
        return self._call(type(value), arguments)

    def _view(self, view: FleetView) -> str:
        arguments = [self.write(list(view.replicas)), self.write(list(view.workloads))]
        plain = FleetView.build(view.replicas, view.workloads)
        times = {name: float(getattr(view, name)) for name in ("step", "now_s", "elapsed_s")}
        arguments += [f"{name}={self._number(at)}" for name, at in times.items() if at != getattr(plain, name)]
        for name, array in columns(view).items():
            same = np.array_equal(array, columns(plain)[name], equal_nan=array.dtype.kind == "f")
            if not same:
                flat = array.ravel()
                uniform = np.array_equal(flat, np.full_like(flat, flat[0]), equal_nan=flat.dtype.kind == "f")
                arguments.append(f"{name}={self.write(flat[0].item() if uniform else array.tolist())}")
        return self._call(FleetView, arguments)
