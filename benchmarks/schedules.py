"""Simulates a million schedules with deaths, joins, stalls and lost messages, in batches; a file records the finished
batches.

    python -m benchmarks.schedules [--most 1000000] [--jobs 2] [--into reports/faults/schedules.jsonl]

A batch runs `tests/sim/test_faults.py` with newly drawn schedules. The first batch that breaks an invariant ends the
command.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from bench.base.grouping import summed
from benchmarks.frame import options, run_command, table
from ddp.core.policies import POLICIES

ROOT = Path(__file__).parents[1]
TESTS = "tests/sim/test_faults.py"
EACH, LONG, BACKENDS = 1120, 300, 3
"""As in the tests: schedules for each policy on each backend, of ranks that come back, and of new ones; those in long
runs."""


HEAD = """# A million simulated schedules

    make million

A schedule is a short run in virtual time. Policy, ranks, costs and faults are drawn: deaths at the worst moments, stalls,
lost messages, slowness, ranks that return or come anew. After every event all invariants (`tests/sim/invariants.py`)
are checked. [A line for each batch](schedules.jsonl): the digest of the code that it checked, without comments; its number,
which seeds it; schedules; seconds on two cores. A change of this code begins a new count; so does a broken invariant, as
the one in the batch after the last of `dd49f5617375`."""


def in_a_batch() -> int:
    """Return the schedules of a batch."""
    return (len(POLICIES) + 2) * BACKENDS * EACH + LONG


def sources() -> str:
    """Return a digest of the code that decides a schedule: the core, the simulator, what is drawn, and the invariants."""
    cores = [file for room in ("core", "sim") for file in (ROOT / "ddp" / room).rglob("*.py")]
    files = sorted([*cores, ROOT / "tests/sim/invariants.py", ROOT / "tests/sim/strategies.py"])
    return hashlib.sha256("".join(map(code, files)).encode()).hexdigest()[:12]


def code(file: Path) -> str:
    """Return a file without its comments and docstrings, which decide nothing."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            if isinstance(block := getattr(node, name, None), list):
                setattr(node, name, [line for line in block if not _is_text(line)])
    return ast.unparse(tree)


def _is_text(line: ast.AST) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)


def done(record: Path) -> tuple[int, int]:
    """Return (schedules played with these sources, batches of any): the next batch has a number of its own."""
    lines = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    return sum(line["schedules"] for line in lines if line["sources"] == sources()), len(lines)


def page(record: Path) -> str:
    """Return the page about the batches of all sources, the present ones last."""
    lines = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    counts = summed((line["sources"], line["schedules"]) for line in lines)
    present = {sources(): counts.pop(sources(), 0)}
    rows = [[f"`{name}`", f"{count:,}", ""] for name, count in counts.items()]
    rows += [[f"`{name}`", f"{count:,}", "present code"] for name, count in present.items()]
    return f"{HEAD}\n\nNo invariant broken in these schedules:\n\n{table(rows, ['digest', 'schedules', ''])}\n"


def batch(number: int, jobs: int) -> int:
    """Play a batch in so many processes; return pytest's exit code."""
    spread = ("-n", str(jobs), "--dist", "worksteal") if jobs > 1 else ("-n", "0")
    words = ("-q", *spread, "-p", "no:cacheprovider", f"--hypothesis-seed={number}", TESTS)
    return subprocess.run((sys.executable, "-m", "pytest", *words), env={**os.environ, "SCHEDULES": "new"}).returncode


def main() -> int:
    """Run the command."""
    parser = options(__doc__)
    parser.add_argument("--most", type=int, default=1_000_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--into", type=Path, default=Path("reports/faults/schedules.jsonl"))
    asked = parser.parse_args()
    asked.into.parent.mkdir(parents=True, exist_ok=True)
    while (state := done(asked.into))[0] < asked.most:
        began = time.monotonic()
        if code := batch(state[1], asked.jobs):
            print(f"batch {state[1]}: a law is broken, see above", file=sys.stderr)
            return code
        line = {
            "sources": sources(),
            "batch": state[1],
            "schedules": in_a_batch(),
            "seconds": time.monotonic() - began,
        }
        with asked.into.open("a") as file:
            file.write(json.dumps(line) + "\n")
        asked.into.with_suffix(".md").write_text(page(asked.into))
        print(f"{state[0] + in_a_batch():,} schedules, no law broken", flush=True)
    return 0


if __name__ == "__main__":
    run_command(main)
