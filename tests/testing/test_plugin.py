"""The fixture, and what is said where hypothesis is missing."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

TEST = """
class Greedy:
    def limits(self, view, last):
        from turnout.policies import Limits
        return Limits(ceiling_tokens=2 * view.kv_tokens)

def test_greedy(check_policy):
    check_policy(Greedy, examples=20)
"""

WITHOUT = """
import sys
sys.modules["hypothesis"] = None
import turnout
try:
    import turnout.testing.plugin
except turnout.errors.MissingExtra as error:
    print(isinstance(error, ImportError), error)
"""


def python(*arguments: str, cwd: Path) -> str:
    shown = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=cwd)  # noqa: S603
    return shown.stdout + shown.stderr


def test_the_fixture_checks_a_policy(tmp_path: Path) -> None:
    (tmp_path / "test_greedy.py").write_text(TEST, encoding="utf-8")
    shown = python("-m", "pytest", "-q", "-p", "turnout.testing.plugin", "-p", "no:cacheprovider", cwd=tmp_path)
    assert "stays_within_capacity: ceiling_tokens[r0] is 640, the replica has 320" in shown
    assert "from test_greedy import Greedy as make_policy" in shown


def test_without_hypothesis_the_extra_is_named(tmp_path: Path) -> None:
    assert python("-c", WITHOUT, cwd=tmp_path) == (
        "True turnout.testing needs hypothesis: pip install 'turnout[testing]'\n"
    )
