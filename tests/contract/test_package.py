"""What is tested is what is installed, it is whole, and its examples run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import turnout

ROOT = Path(__file__).parents[2]
INSTALLED = Path(turnout.__file__).parent
MODULES = ["turnout", *(entry.name for entry in pkgutil.walk_packages([str(INSTALLED)], "turnout."))]


def test_the_installed_package_is_tested() -> None:
    """A library left in the tree would shadow the one that was built."""
    assert not INSTALLED.is_relative_to(ROOT / "python")
    assert not list((ROOT / "python").rglob("_core*.so"))


def test_types_travel_with_the_package() -> None:
    assert {"py.typed", "_core.pyi"} <= {path.name for path in INSTALLED.iterdir()}


def test_one_version_everywhere() -> None:
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]
    assert {turnout.__version__, metadata.version("turnout")} == {workspace["package"]["version"]}


def test_the_licence_is_the_plain_text() -> None:
    """A copy from another project would name that project as the copyright owner."""
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert text.lstrip().startswith("Apache License")
    assert "END OF TERMS AND CONDITIONS" in text
    assert [line.strip() for line in text.splitlines() if line.strip().startswith("Copyright")] == [
        "Copyright [yyyy] [name of copyright owner]"
    ]


@pytest.mark.parametrize("name", [name for name in MODULES if name != "turnout._core"])
def test_examples_run(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ImportError as missing:
        if not name.startswith("turnout.adapters.") or str(missing.name).startswith("turnout"):
            raise
        pytest.skip(str(missing))  # a host: `make test-hosts` installs it
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


def test_the_examples_are_found() -> None:
    """So that the test above cannot pass for want of any."""
    found = doctest.DocTestFinder().find(importlib.import_module("turnout.router"))
    assert any(test.name == "turnout.router.Router" and test.examples for test in found)
