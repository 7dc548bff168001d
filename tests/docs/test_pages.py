"""The code in the pages runs as it stands there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from turnout.policies import FleetView, Limits, lookup
from turnout.simulate.mixture import mixture
from turnout.simulate.run import Setup, run

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def blocks(page: str) -> list[str]:
    return BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/engine.md",
        "docs/feeds.md",
        "docs/interface.md",
        "docs/policies.md",
        "docs/prefix-index.md",
        "docs/proxy.md",
        "docs/record.md",
    ],
)
def test_code_runs(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = blocks(page)
    assert found
    names: dict[str, object] = {"__name__": "page"}
    monkeypatch.chdir(ROOT)
    for code in found:
        exec(compile(code, page, "exec"), names)  # noqa: S102 - our own pages


def test_the_policy_of_the_guide_runs_in_a_simulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = next(code for code in blocks("docs/policies.md") if code.startswith('"""half.py"""'))
    (tmp_path / "half.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "half", raising=False)
    setup = Setup(replicas=2, kv_tokens=98_500, concurrency=60, duration_s=120.0, repeat=True)
    record = run("half:Careful", 0, mixture(60, seed=0), setup).record
    assert record["finished_sessions"] > 0
    policy = lookup("half:Careful")
    view = FleetView.build(["r0"], ["a"], kv_tokens=1_000, held_paused=1, prefill_tokens_per_s=100.0)
    first = policy.limits(view, Limits())
    assert policy.limits(view, first).ceiling_tokens < first.ceiling_tokens


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
