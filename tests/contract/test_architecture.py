"""The house: who may import whom, how long a file may be, and what may not stand in it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "python" / "turnout"
MODULES = sorted(PACKAGE.rglob("*.py"))
TRACKED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()  # noqa: S607

BASE = {"turnout.errors"}
POLICIES = {"turnout.policies", *BASE}
CONTROL = {"turnout.control", "turnout._core", "turnout.config", *POLICIES}
SIMULATE = {"turnout.simulate", *CONTROL}
SHELL = {"turnout", "turnout.router", "turnout.record", *CONTROL}
FEEDS = {"aiohttp", "zmq", "prometheus_client", "turnout.feeds", *SHELL}
WIRE = {"turnout.server.schema", "turnout.server.binary"}
ADAPTERS = {"turnout.adapters.shared", "turnout.aio", *SHELL}
ALLOWED = {
    "turnout.errors": set(),
    "turnout.config": set(),
    "turnout.policies": {"numpy", *POLICIES},
    "turnout.control": POLICIES,
    "turnout.router": CONTROL,
    "turnout.record": {"turnout", "turnout._core", "turnout.errors", "turnout.router", "turnout.policies"},
    "turnout.replay": {"typer", "turnout", "turnout.record", "turnout.errors"},
    "turnout.prompts": {"numpy"},
    "turnout.prefix_index": {"numpy", "turnout", "turnout._core", "turnout.config"},
    "turnout": {"turnout.router", "turnout.prefix_index", *CONTROL},
    "turnout.simulate": {"numpy", "typer", "rich", "zstandard", "matplotlib", *SIMULATE},
    "turnout.testing": {"numpy", "hypothesis", "turnout.testing", "turnout", "turnout.router", *SIMULATE},
    "turnout.testing.plugin": {"pytest", "turnout.testing", *BASE},
    "turnout.bench": {"numpy", "typer", "rich", "turnout", "turnout.bench"},
    "turnout.aio": {"turnout.aio", *SHELL},
    "turnout.feeds": {*FEEDS, "turnout.aio"},
    "turnout.doctor": {"typer", "tokenizers", "turnout.doctor", *FEEDS},
    "turnout.listening": {"uvicorn", *BASE},
    "turnout.engine": {
        "turnout.listening",
        "starlette",
        "uvicorn",
        "msgspec",
        "zmq",
        "typer",
        "turnout.engine",
        *SIMULATE,
    },
    # The messages and their two forms: what server and client share.
    "turnout.server.schema": {"msgspec", "turnout"},
    "turnout.server.binary": {"msgspec", "numpy", "turnout.server.schema", *BASE},
    "turnout.client": {"aiohttp", "msgspec", "turnout", "turnout.client", *WIRE, *BASE},
    "turnout.demo": {"numpy", "aiohttp", "turnout.engine", *SIMULATE},
    "turnout.adapters": set(),
    "turnout.adapters.proxies": {
        "numpy",
        "msgspec",
        "grpc",
        "grpc_health",
        "envoy",
        "starlette",
        "turnout.adapters.proxies",
        "turnout.aio",
        "turnout.prompts",
        *SHELL,
    },
    "turnout.server": {
        "numpy",
        "turnout.listening",
        "starlette",
        "uvicorn",
        "msgspec",
        "tokenizers",
        "typer",
        "aiohttp",
        "multidict",
        "turnout.prompts",
        "turnout.demo",
        "turnout.server",
        "turnout.adapters.proxies",
        "turnout.aio",
        *WIRE,
        *FEEDS,
    },
    "turnout.adapters.shared": {"numpy", "turnout.adapters.shared", "turnout.aio", *SHELL},
    "turnout.adapters.ray": {"ray", "turnout.adapters.ray", *ADAPTERS},
    "turnout.adapters.verl": {"ray", "verl", "yaml", "turnout.adapters.ray", "turnout.adapters.verl", *ADAPTERS},
    "turnout.adapters.litellm": {"litellm", "turnout.prompts", *ADAPTERS},
    "turnout.experiment": {"numpy", "typer", "rich", "matplotlib", "turnout.experiment", *SIMULATE},
    "turnout.cli": {
        "typer",
        "turnout",
        "turnout.server",
        "turnout.bench",
        "turnout.doctor",
        "turnout.engine",
        "turnout.experiment",
        "turnout.replay",
        *SIMULATE,
    },
}
"""By part of the package: what it may import beside the standard library."""


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = frozenset(map(module_name, MODULES))


def part_of(name: str) -> str:
    """The longest part of the package that a module belongs to."""
    return max((part for part in [*ALLOWED, "turnout._core"] if name == part or name.startswith(f"{part}.")), key=len)


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the direction"
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            found.update(name if node.module == "turnout" or name in NAMES else node.module for name in names)
    return found


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_point_one_way(path: Path) -> None:
    part = part_of(module_name(path))
    for name in imports(path):
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names:
            continue
        target = part_of(name) if top == "turnout" else top
        assert target in ALLOWED[part], f"{module_name(path)} imports {name}"


def test_import_needs_numpy_alone() -> None:
    """In a process of its own, because this one has imported everything."""
    code = "import sys, turnout; print({name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names))"
    shown = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True).stdout  # noqa: S603
    third_party = {
        name for name in ast.literal_eval(shown) if not name.startswith(("_", "sitecustomize", "usercustomize"))
    }
    assert third_party == {"numpy", "turnout"}


@pytest.mark.parametrize(
    ("crate", "accepted"),
    [
        ("core", set()),
        ("wire", {"turnout-core", "rmp"}),
        ("sim", {"turnout-core"}),
        ("binding", {"turnout-core", "turnout-wire", "turnout-sim", "pyo3"}),
    ],
)
def test_crates_point_one_way(crate: str, accepted: set[str]) -> None:
    manifest = tomllib.loads((ROOT / "rust" / crate / "Cargo.toml").read_text(encoding="utf-8"))
    assert set(manifest.get("dependencies", {})) == accepted


def test_the_core_has_no_clock_no_io_no_threads() -> None:
    forbidden = re.compile(
        r"std::(time::(Instant|SystemTime)|fs|io|net|thread|env|process|sync::(Mutex|RwLock|atomic))|println!"
    )
    for path in (ROOT / "rust" / "core" / "src").rglob("*.rs"):
        assert not forbidden.search(path.read_text(encoding="utf-8")), path


def test_unsafe_stands_in_the_vector_kernels_alone_and_says_why() -> None:
    core = ROOT / "rust" / "core" / "src"
    kernels = {core / "arch" / f"{name}.rs" for name in ("avx2", "neon", "sse2")}
    assert "#![deny(unsafe_code)]" in (core / "lib.rs").read_text(encoding="utf-8")
    for path in core.rglob("*.rs"):
        text = path.read_text(encoding="utf-8")
        if path in kernels:
            blocks = re.findall(r"(.*)\n.*\bunsafe\b.*\{", text)
            assert blocks, path
            assert all("// SAFETY: " in before for before in blocks), path
        else:
            assert not re.search(r"\bunsafe\b", text.replace("`unsafe`", "")), path
            assert path == core / "arch" / "mod.rs" or "allow(unsafe_code" not in text, path


SOURCES = [name for name in TRACKED if name.endswith((".rs", ".py", ".pyi"))]


@pytest.mark.skipif(not TRACKED, reason="not a git checkout")
def test_files_are_short_or_say_why() -> None:
    for name in SOURCES:
        lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        assert len(lines) <= 500 or any("Length:" in line for line in lines[:5]), f"{name}: {len(lines)} lines"


@pytest.mark.skipif(not TRACKED, reason="not a git checkout")
def test_no_absolute_paths() -> None:
    absolute = re.compile(r"(?<![\w.:/<*])/(?:home|root|tmp|opt|work|Users)/\w")
    for name in TRACKED:
        path = ROOT / name
        if path.suffix in {".png", ".lock"} or not path.is_file():
            continue
        found = absolute.search(path.read_text(encoding="utf-8"))
        assert not found, f"{name}: {found and found.group()}"
