"""Every reason of the core has words, and is in the closed list that the stub states."""

from __future__ import annotations

import re
from pathlib import Path

from turnout.server.explain import REASONS

ROOT = Path(__file__).parents[2]


def test_every_reason_has_words_and_is_documented() -> None:
    types = (ROOT / "rust" / "core" / "src" / "router" / "types.rs").read_text(encoding="utf-8")
    body = types[types.index("impl Reason") :]
    said = set(re.findall(r'Self::\w+ => "(\w+)"', body[: body.index("\n}\n")]))
    assert len(said) > 20
    assert set(REASONS) == said
    stub = (ROOT / "python" / "turnout" / "_core.pyi").read_text(encoding="utf-8")
    start = stub.index("Why, from a closed list.")
    assert set(re.findall(r"`(\w+)`", stub[start : stub.index('"""', start)])) == said
