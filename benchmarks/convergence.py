"""Does averaging cost accuracy? A Markdown table of final accuracy against solo with the same seeds, from run folders.

    python -m benchmarks.convergence runs/convergence    # after: make convergence DATA=FOLDER

Reads run folders only. Efficiency and time are left out: this asks one question.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from scipy.stats import t as student
from tabulate import tabulate

from bench.cells import Cell, by_workload, cells, solo_of
from bench.runfolder import find_runs

MARGIN = 0.2
"""Points of accuracy that a mode's mean may lie below solo's."""
CONFIDENCE = 0.95
NONE = "–"
PUBLISHED: dict[str, dict[str, float]] = {
    "lenet": {
        "solo": 0.9870,
        "nccl_sync": 0.9894,
        "nccl_cadence": 0.9891,
        "cpu_sync": 0.9887,
        "cpu_cadence": 0.9760,
        "cpu_async": 0.9871,
    },
    "mlp": {
        "solo": 0.9628,
        "nccl_sync": 0.9728,
        "nccl_cadence": 0.9696,
        "cpu_sync": 0.9703,
        "cpu_cadence": 0.9692,
        "cpu_async": 0.9709,
    },
}
"""Accuracy in floDl ddp-bench's later report: 5 epochs, one run each, three GPUs, solo on the first of them."""


@dataclass(frozen=True)
class Difference:
    """A mode less solo over the seeds that both finished, points of accuracy."""

    n: int
    mean: float
    half: float | None
    """Half the width of the confidence interval of the mean; None below two seeds."""


def paired(mode: Mapping[int, float], solo: Mapping[int, float]) -> Difference | None:
    """The mean over common seeds of accuracies (fractions, by seed) less solo's, by Student's t; None without any."""
    points = [100 * (mode[seed] - solo[seed]) for seed in sorted(mode.keys() & solo.keys())]
    if not points:
        return None
    n = len(points)
    half = student.ppf((1 + CONFIDENCE) / 2, n - 1) * stdev(points) / math.sqrt(n) if n > 1 else None
    return Difference(n, fmean(points), None if half is None else float(half))


def by_seed(cell: Cell) -> dict[int, float]:
    """Final accuracy of the runs that finished."""
    return {m.seed: m.final.eval for m in cell.ok if m.final.eval is not None}


def table(found: Sequence[Cell]) -> str:
    """The tables of all workloads in `found`, each with one sentence on who stays within the margin."""
    return "\n\n".join(_section(group) for group in by_workload(list(found)).values())


def _section(group: list[Cell]) -> str:
    solo = solo_of(group)
    reference = by_seed(solo) if solo else {}
    differences = {cell.label: paired(by_seed(cell), reference) for cell in group if not cell.is_solo}
    rows = [_row(cell, differences.get(cell.label)) for cell in group]
    workload = group[0].workload
    return (
        f"### {workload.model} ({workload.detail})\n\n{tabulate(rows, 'keys', 'pipe', disable_numparse=True)}\n\n"
        + (_verdict(differences))
    )


def _row(cell: Cell, difference: Difference | None) -> dict[str, str]:
    sample, published = cell.eval, PUBLISHED.get(cell.workload.model, {})
    theirs, base = published.get(cell.about.mode), published.get("solo")
    gap = f" ({100 * (theirs - base):+.2f})" if theirs and base and not cell.is_solo else ""
    return {
        "mode": cell.label,
        "n": str(sample.n),
        "accuracy": NONE if sample.mean is None else f"{sample.mean:.4f}",
        "sd": NONE if sample.sd is None else f"{sample.sd:.4f}",
        "less solo, points": _shown(difference),
        "floDl ddp-bench (less its solo)": f"{theirs:.4f}{gap}" if theirs else NONE,
        "not finished": str(len(cell.runs) - len(cell.ok)),
    }


def _shown(difference: Difference | None) -> str:
    if difference is None:
        return NONE
    interval = f" ± {difference.half:.2f}" if difference.half is not None else ""
    return f"{difference.mean:+.2f}{interval} (n={difference.n})"


def _verdict(differences: Mapping[str, Difference | None]) -> str:
    known = {label: d for label, d in differences.items() if d is not None}
    below = [label for label, d in known.items() if d.mean < -MARGIN]
    unknown = [label for label in differences if label not in known]
    text = f"{len(known) - len(below)} of {len(differences)} modes lie at most {MARGIN} points below solo"
    text += f"; further below: {', '.join(below)}" if below else ""
    return text + (f"; not comparable: {', '.join(unknown)}." if unknown else ".")


def main(root: Path) -> str:
    """The page over the runs in `root`. ValueError for a folder that cannot be read or holds an unreadable run."""
    found, problems = find_runs(root)
    if problems:
        raise ValueError(f"{problems[0]}; a table is not made from a tree with unreadable runs")
    about = (
        f"*Accuracy*: mean over the n finished runs, sd over seeds. *Less solo*: mean over the seeds that both finished, "
        f"with the {CONFIDENCE:.0%} interval of Student's t. floDl ddp-bench: one run a cell, three GPUs, another order "
        "of data for its solo."
    )
    return f"{about}\n\n{table(cells(found))}\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m benchmarks.convergence FOLDER")
    try:
        print(main(Path(sys.argv[1])), end="")
    except ValueError as error:
        sys.exit(str(error))
