"""Instructions of one operation, counted by callgrind: the gate that does not depend on how busy the machine is.

    python benches/instructions.py target/release/turnout-bench

Counts each operation twice, for two numbers of repetitions: the difference is what the operations took. Exits with 1 when an
operation takes more than its limit. Limits are what was measured plus a tenth; whoever makes one faster lowers it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

FEW, MANY = 100, 600
TOLERANCE = 1.10
"""Compilers differ a little from version to version."""

MEASURED = {
    "hash-8192": 0,
    "lookup-8192": 0,
    "hash-1536": 0,
    "lookup-1536": 0,
    "extend-512": 0,
    "peek": 0,
    "peek-1024-replicas": 0,
    "evict-tail": 0,
    "submit-abort-8": 0,
    "submit-abort-64": 0,
}
"""Instructions of one operation, Rust 1.95, x86-64 with AVX2."""

RATIOS = {("lookup-8192", "hash-8192"): 1.25, ("peek-1024-replicas", "peek"): 1.5}
"""By operation and bound: how many times the bound it may take."""


def instructions(program: str, operation: str, count: int) -> int:
    """Instructions that a whole run executes."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "callgrind"
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", program, operation, str(count)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        if run.returncode:
            sys.exit(run.stderr)
        return int(re.search(r"Collected : (\d+)", run.stderr)[1])


def main() -> int:
    """Count, print and judge."""
    program = sys.argv[1]
    counted = {}
    failed = False
    print(f"{'operation':22s} {'instructions':>12s} {'limit':>10s}")
    for operation, measured in MEASURED.items():
        few, many = instructions(program, operation, FEW), instructions(program, operation, MANY)
        counted[operation] = (many - few) / (MANY - FEW)
        limit = measured * TOLERANCE
        failed |= counted[operation] > limit
        print(f"{operation:22s} {counted[operation]:12,.0f} {limit:10,.0f}")
    for (operation, bound), most in RATIOS.items():
        ratio = counted[operation] / counted[bound]
        failed |= ratio > most
        print(f"{operation} over {bound}: {ratio:.3f}, at most {most}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
