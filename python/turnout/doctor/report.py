"""What was found at one engine, for people and for programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

Status: TypeAlias = Literal["ok", "missing", "unreachable", "untried"]

SIGNS: Final[dict[Status, str]] = {"ok": "ok", "missing": "MISSING", "unreachable": "UNREACHABLE", "untried": "-"}
WORST: Final = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        check: What was looked at.
        status: `ok`; `missing` (the router does without, and worse); `unreachable`; `untried` (not asked for, or the
            engine has no way to say).
        words: What was found.
        advice: What to do about it; empty when nothing has to be done.
    """

    check: str
    status: Status
    words: str
    advice: str = ""


@dataclass(slots=True)
class Report:
    """All that was found at one engine.

    Attributes:
        url: Its address.
        kind: `vllm`, `sglang` or `auto` while unknown.
        version: As it says; empty = unknown.
        findings: In the order of the checks.
    """

    url: str
    kind: str = "auto"
    version: str = ""
    findings: list[Finding] = field(default_factory=list)

    def add(self, check: str, status: Status, words: str, advice: str = "") -> None:
        """Note a finding; what engines say in it loses whatever a terminal would obey."""
        self.findings.append(Finding(check, status, printable(words), advice))

    @property
    def code(self) -> int:
        """Exit status: 0 = all good, 1 = something is missing, 2 = unreachable.

        Example:
            >>> report = Report("http://h")
            >>> report.add("metrics", "missing", "no /metrics")
            >>> report.code
            1
        """
        found = {finding.status for finding in self.findings}
        return WORST if "unreachable" in found else int("missing" in found)


def printable(text: str) -> str:
    r"""A text without control characters.

    Example:
        >>> printable("a\x1b[2Jb")
        'a?[2Jb'
    """
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def lines(reports: Iterable[Report]) -> list[str]:
    """Reports for a person.

    Args:
        reports: The reports.

    Returns:
        Lines of text.
    """
    shown: list[str] = []
    for report in reports:
        what = "" if report.kind == "auto" else f": {report.kind} {report.version}".rstrip()
        shown += [printable(report.url + what)]
        for finding in report.findings:
            shown.append(f"  {SIGNS[finding.status]:11s} {finding.check:14s} {finding.words}")
            if finding.advice:
                shown.append(f"  {'':11s} {'':14s} -> {finding.advice}")
    return shown
