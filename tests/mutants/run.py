"""Switches off one rule of the core at a time: the tests that guard it must fail, or they guard nothing.

    python tests/mutants/run.py [NAME ...]

Works on a copy of the sources, so the checkout stays as it is. `rules.toml` holds the rules; a name picks those of an
invariant, for example `I8`. Exits with 1 when a rule can go without a test noticing, and when the unchanged tests fail.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
RULES = Path(__file__).with_name("rules.toml")
COPIED = ("Cargo.toml", "Cargo.lock", "README.md", "LICENSE", "rust", "benches", "tests/data")
CASES = "1500"
"""Random histories per law: enough that a missing rule does not slip through by luck."""


def tests(copy: Path, name: str) -> subprocess.CompletedProcess[str]:
    """Run one file of tests of the core on the copy.

    Args:
        copy: Where the sources lie.
        name: The file under `rust/core/tests`, without its ending.

    Returns:
        How it went.
    """
    command = ["cargo", "test", "--quiet", "--locked", "--package", "turnout-core", "--test", name]
    target = os.environ.get("CARGO_TARGET_DIR", str(ROOT / "target"))
    environment = os.environ | {"CARGO_TARGET_DIR": f"{target}/mutants", "PROPTEST_CASES": CASES, "RUST_BACKTRACE": "0"}
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)  # noqa: S603


def noticed(copy: Path, rule: dict[str, str]) -> str | None:
    """Switch one rule off and see whether its tests fail.

    Args:
        copy: Where the sources lie; as before afterwards.
        rule: The rule, as in `rules.toml`.

    Returns:
        `None` when they do; else what is wrong.
    """
    path = copy / "rust" / "core" / "src" / rule["file"]
    before = path.read_text(encoding="utf-8")
    if before.count(rule["old"]) != 1:
        return f"{rule['file']} holds its text {before.count(rule['old'])} times, not once"
    path.write_text(before.replace(rule["old"], rule["new"]), encoding="utf-8")
    try:
        run = tests(copy, rule["test"])
    finally:
        path.write_text(before, encoding="utf-8")
    if "could not compile" in run.stderr:
        return f"it does not compile: {run.stderr[-2000:]}"
    return None if run.returncode else f"all tests of {rule['test']} pass without it"


def main() -> int:
    """Run what the command line names.

    Returns:
        The exit status.
    """
    chosen = set(sys.argv[1:])
    rules = tomllib.loads(RULES.read_text(encoding="utf-8"))["rule"]
    rules = [rule for rule in rules if not chosen or rule["invariant"] in chosen]
    unnoticed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in COPIED:
            source = ROOT / name
            (shutil.copytree if source.is_dir() else shutil.copy2)(source, copy / name)
        for name in sorted({rule["test"] for rule in rules}):
            run = tests(copy, name)
            if run.returncode:
                sys.stderr.write(f"{name} fails with all rules in force\n{run.stdout[-4000:]}{run.stderr[-4000:]}")
                return 1
        for rule in rules:
            problem = noticed(copy, rule)
            unnoticed += problem is not None
            print(
                f"{rule['invariant']:4s} {'noticed' if problem is None else 'NOT NOTICED':11s} {rule['says']}",
                flush=True,
            )
            if problem:
                print(f"     {problem}", flush=True)
    print(f"{len(rules) - unnoticed} of {len(rules)} rules are guarded")
    return int(unnoticed > 0)


if __name__ == "__main__":
    sys.exit(main())
