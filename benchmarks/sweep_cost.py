"""What a sweep of short cells costs beyond their training, cells one after the other and side by side (`timing=off`).

python -m benchmarks.sweep_cost --cells 100

The total is the command's, from its start to its end, report and imports included; training is the sum of `time_s.train`.
Both are wall time of one command, so that other programs slow both.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tabulate import tabulate

from bench.results.runfolder import find_runs
from benchmarks.documents import DOCS

CELL = ("model=mlp", "mode=solo", "validate=false")
EPOCHS = 9
"""Some 2 s on a quiet core."""
WAYS = {"one after the other": (), "side by side": ("timing=off",)}


class SweepCost(NamedTuple):
    """Seconds of one sweep."""

    cells: int
    total: float
    training: float

    @property
    def ratio(self) -> float:
        return self.total / self.training


def measured(cells: int, epochs: int, words: tuple[str, ...]) -> SweepCost:
    """Train a sweep in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-P",
            "-m",
            "bench",
            "-m",
            *CELL,
            f"train.epochs={epochs}",
            f"seed=range({cells})",
            *words,
        ]
        environment = os.environ | {"PYTHONPATH": str(DOCS.parent)}
        begun = time.monotonic()
        subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=True)
        total = time.monotonic() - begun
        runs = [run.metrics for run in find_runs(Path(folder) / "runs")[0]]
    return SweepCost(len(runs), total, sum(run.time_s.train for run in runs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    options = parser.parse_args()
    load, rows = os.getloadavg()[0], []
    for name, words in WAYS.items():
        cost = measured(options.cells, options.epochs, words)
        rows.append((name, cost.cells, f"{cost.training / cost.cells:.1f}", f"{cost.ratio:.2f}"))
        print(rows[-1], flush=True)
    heads = ("cells", "how many", "s of training each", "total / training")
    table = tabulate(rows, heads, tablefmt="github", disable_numparse=True)
    command = f"`python -m benchmarks.sweep_cost --cells {options.cells}`"
    table += f"\n\n{command}, {os.cpu_count()} cores, load {load:.0f} before it."
    print(table)


if __name__ == "__main__":
    main()
