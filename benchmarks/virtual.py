"""Measures the quality of training with many ranks: the same samples over W virtual ranks, one table in
`reports/virtual`.

    python -m benchmarks.virtual            train what is missing, write reports/virtual/quality.md and quality.csv
    python -m benchmarks.virtual --trained  write them of what is trained already

Each cell is a run of the command in a process of its own. Its folder stays in `runs/virtual`, so that a second call
skips finished cells.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import frame

RUNS = Path("runs/virtual")
RANKS = (8, 64, 1000)
MODES = {"virtual_nccl_sync": (), "virtual_nccl_cadence": ("anchor", "min_anchor", "max_anchor")}
WORKLOAD = ("model=mlp", "train.epochs=8", "train.batch_size=4", "virtual.steps=lognormal:0.1")
"""With 1,000 ranks and windows of two steps, 24 rounds."""
ANCHOR = 2
LIMIT_S = 300
"""For 1,000 ranks and 20 rounds."""
QUIET = ("report=false", "audit=false", "validate=false")


def words(mode: str, ranks: int) -> list[str]:
    """Return the words of a cell's command."""
    fixed = [f"policy.{name}={ANCHOR}" for name in MODES.get(mode, ())]
    size = [f"world_size={ranks}"] if ranks > 1 else []
    workload = WORKLOAD if ranks > 1 else WORKLOAD[:-1]
    return [*workload, f"mode={mode}", *size, *fixed, f"output={RUNS}", *QUIET]


def trained(mode: str, ranks: int) -> dict[str, Any]:
    """Train a cell, or take what there is of it; return its result."""
    kept = RUNS / f"{mode}-{ranks}.json"
    if not kept.is_file():
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        frame.bench(*words(mode, ranks), "force=true", env=os.environ | {"OMP_NUM_THREADS": "2"})
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        folder = max((RUNS / "mlp" / mode).glob(f"w{ranks}-s0-*"), key=lambda path: path.stat().st_mtime)
        cost = {
            "wall_s": time.monotonic() - began,
            "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        }
        kept.write_text(json.dumps(cost | {"folder": str(folder)}) + "\n")
    cost = json.loads(kept.read_text())
    return cost | {"metrics": json.loads((Path(cost["folder"]) / "metrics.json").read_text())}


def rows(missing: bool) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table, one rank alone first; cells that are `missing` are trained for it, or left out."""
    for mode, ranks in [("solo", 1), *((mode, ranks) for mode in MODES for ranks in RANKS)]:
        if not missing and not (RUNS / f"{mode}-{ranks}.json").is_file():
            continue
        result = trained(mode, ranks)
        metrics = result["metrics"]
        yield {
            "mode": mode,
            "ranks": ranks,
            "steps_per_rank": round(metrics["steps"] / ranks),
            "rounds": len(metrics["elche"]["rounds"]) if "rounds" in (metrics["elche"] or {}) else None,
            "accuracy": metrics["final"]["eval"],
            "train_loss": metrics["final"]["train_loss"],
            "efficiency": metrics["throughput"]["efficiency"],
            "virtual_s": metrics["time_s"]["train"] if ranks > 1 else None,
            "cpu_s": result["cpu_s"],
            "wall_s": result["wall_s"],
        }
        print(f"{mode} x{ranks}: {metrics['final']['eval']:.4f}", file=sys.stderr, flush=True)


def page(found: list[dict[str, Any]]) -> tuple[str, ...]:
    """Return the parts of the page."""
    about = (
        f"`{' '.join(WORKLOAD)}`, windows of {ANCHOR} steps with cadence; `python -m benchmarks.virtual` made this page. "
        "All cells train the same 21,560 samples in each of eight epochs, at the rate of the recipe. From 16 ranks on, "
        "one operation trains them all. Virtual seconds are those that the run would take with 10 ms a step. Wall seconds "
        "include waiting for other programs."
    )
    heads = [
        "mode",
        "ranks",
        "steps of a rank",
        "accuracy",
        "training loss",
        "efficiency",
        "virtual s",
        "CPU s",
        "wall s",
    ]
    return "# Quality over the number of ranks", about, frame.table(map(_cells, found), heads)


def _cells(row: dict[str, Any]) -> list[str]:
    efficiency = "" if row["efficiency"] is None else f"{100 * row['efficiency']:.0f} %"
    virtual = "" if row["virtual_s"] is None else f"{row['virtual_s']:,.1f}"
    trained = [f"{row[name]:.4f}" for name in ("accuracy", "train_loss")]
    costs = [f"{row[name]:.0f}" for name in ("cpu_s", "wall_s")]
    return [row["mode"], f"{row['ranks']:,}", f"{row['steps_per_rank']:,}", *trained, efficiency, virtual, *costs]


def main() -> int:
    """Train and write; return 1 where 1,000 ranks took longer than they may."""
    parser = frame.options(__doc__)
    parser.add_argument("--trained", action="store_true", help="train nothing")
    options = parser.parse_args()
    RUNS.mkdir(parents=True, exist_ok=True)
    found = list(rows(missing=not options.trained))
    frame.write_report("virtual/quality.md", *page(found))
    head = list(found[0])
    body = [",".join("" if row[key] is None else str(row[key]) for key in head) for row in found]
    frame.write_report("virtual/quality.csv", "\n".join([",".join(head), *body]))
    return int(any(row["ranks"] == max(RANKS) and row["wall_s"] > LIMIT_S for row in found))


if __name__ == "__main__":
    frame.run_command(main)
