"""Instructions of one operation, counted by callgrind: the gate that does not depend on how busy the machine is.

    python benches/instructions.py target/release/turnout-bench

Counts each operation twice, for two numbers of repetitions: the difference is what the operations took. Exits with 1
when an operation takes more than its limit: what was measured plus a quarter; whoever makes one faster lowers
it. Without AVX2 the counts are printed and not judged. Ratios are tighter: both sides come from one run.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FEW, MANY = 100, 600
TOLERANCE = 1.25
"""Compilers, allocators and the library's compare and copy differ from machine to machine."""

MEASURED = {
    "hash-8192": 5_822,
    "lookup-8192": 6_898,
    "hash-1536": 1_240,
    "lookup-1536": 1_874,
    "extend-512": 1_648,
    "peek": 1_861,
    "peek-1024-replicas": 1_866,
    "evict-tail": 516,
    "submit-abort-8": 16_336,
    "submit-abort-64": 16_365,
    "turn-1k-sessions": 20_290,
    "turn-30k-sessions": 20_242,
}
"""Instructions of one operation, Rust 1.95, x86-64 with AVX2."""

RATIOS = {
    ("lookup-8192", "hash-8192"): 1.25,
    ("peek-1024-replicas", "peek"): 1.05,
    ("submit-abort-64", "submit-abort-8"): 1.05,
    ("turn-30k-sessions", "turn-1k-sessions"): 1.05,
}
"""By operation and bound: how many times the bound it may take."""


def instructions(program: str, operation: str, count: int) -> int:
    """Instructions that a whole run executes."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "callgrind"
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", program, operation, str(count)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        if run.returncode:
            sys.exit(run.stderr)
        found = re.search(r"Collected : (\d+)", run.stderr)
        return int(found[1]) if found else sys.exit(run.stderr)


def main() -> int:
    """Count, print and judge."""
    program = sys.argv[1]
    if shutil.which("valgrind") is None:
        print("valgrind is not installed: instructions are not counted")
        return 0
    judged = "avx2" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    counted: dict[str, float] = {}
    failed = False
    print(f"{'operation':22s} {'instructions':>12s} {'limit':>10s}")
    for operation, measured in MEASURED.items():
        few, many = instructions(program, operation, FEW), instructions(program, operation, MANY)
        counted[operation] = (many - few) / (MANY - FEW)
        limit = measured * TOLERANCE
        failed |= judged and counted[operation] > limit
        print(f"{operation:22s} {counted[operation]:12,.0f} {limit:10,.0f}")
    for (operation, bound), most in RATIOS.items():
        ratio = counted[operation] / counted[bound]
        failed |= ratio > most
        print(f"{operation} over {bound}: {ratio:.3f}, at most {most}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
