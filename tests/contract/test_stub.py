"""Stub and extension agree in every keyword; the event table is documented."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import turnout
from turnout import _core

STUB = ast.parse((Path(turnout.__file__).parent / "_core.pyi").read_text(encoding="utf-8"))
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")}
METHODS = [
    (name, method) for name, node in CLASSES.items() for method in node.body if isinstance(method, ast.FunctionDef)
]


def names(arguments: ast.arguments) -> list[str]:
    return [argument.arg for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]]


@pytest.mark.parametrize(
    ("owner", "method"), METHODS, ids=lambda value: value if isinstance(value, str) else value.name
)
def test_signatures_agree(owner: str, method: ast.FunctionDef) -> None:
    runtime = inspect.getattr_static(getattr(_core, owner), method.name)
    if any(isinstance(decorator, ast.Name) and decorator.id == "property" for decorator in method.decorator_list):
        assert inspect.isdatadescriptor(runtime)
        return
    if isinstance(runtime, staticmethod):
        runtime = runtime.__func__
    if method.name == "__len__":
        return
    signature = inspect.signature(getattr(_core, owner) if method.name == "__new__" else runtime)
    own = [name for name in names(method.args) if name not in {"self", "cls"}]
    assert own == [name for name in signature.parameters if name != "self"]


@pytest.mark.parametrize(
    ("owner", "method"), METHODS, ids=lambda value: value if isinstance(value, str) else value.name
)
def test_everything_is_documented(owner: str, method: ast.FunctionDef) -> None:
    if method.name in {"__len__", "__new__"}:
        assert ast.get_docstring(CLASSES[owner])
        return
    text = ast.get_docstring(method)
    assert text
    for name in names(method.args):
        assert name in {"self", "cls"} or f"{name}:" in text, f"{owner}.{method.name}: {name} is not described"


def test_the_router_passes_every_argument_of_the_core_on() -> None:
    own = dict(inspect.signature(turnout.Router).parameters)
    core = inspect.signature(_core.Router).parameters
    assert set(own) - set(core) == {"policy", "on_policy_error"}
    # A record goes to `Router.restore`.
    assert set(core) - set(own) == {"record", "now"}
    for name in set(core) & set(own) - {"workloads", "hash_key"}:  # which may be left out here
        assert own[name].default == core[name].default, name


def test_every_event_takes_its_time() -> None:
    timeless = {"drain", "peek", "prompt", "stats", "audit", "__new__", "snapshot"}
    timeless |= {"start_journal", "stop_journal", "take_journal"}
    for owner, method in METHODS:
        if owner == "Router" and not method.decorator_list and method.name not in timeless:
            assert "now" in names(method.args), method.name
