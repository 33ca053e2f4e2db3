"""Measures whether averaging costs accuracy: a Markdown table of final values against solo with the same seeds, from
run folders.

    python -m benchmarks.convergence runs/convergence    # after: make convergence DATA=FOLDER

Reads run folders only. Leaves out efficiency and time.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from scipy.stats import t as student

from bench.results.cells import Cell, by_workload, cells, solo_of
from bench.results.runfolder import find_runs
from benchmarks import frame


@dataclass(frozen=True)
class Scale:
    """How differences of a metric are told."""

    unit: str
    factor: float
    """From the metric to the unit. Negative where lower is better, so that a difference below 0 is always worse."""
    margin: float
    """How much worse than solo's a mode's mean may be, in the unit."""
    digits: int


SCALES = {
    "accuracy": Scale("points", 100.0, 0.2, 2),
    "cross-entropy": Scale("nats, worse below 0", -1.0, 0.03, 4),
    "mse": Scale("thousandths, worse below 0", -1000.0, 0.5, 3),
}
CONFIDENCE = 0.95
NONE = "–"
THEIRS = "floDl ddp-bench (less its solo)"
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
    """A mode less solo over the seeds that both finished, in the unit of the metric's scale; below 0: worse."""

    n: int
    mean: float
    half: float | None
    """Half the width of the confidence interval of the mean; None below two seeds."""


def paired(mode: Mapping[int, float], solo: Mapping[int, float], scale: Scale) -> Difference | None:
    """The mean over common seeds of final values (by seed) less solo's, by Student's t; None without any."""
    points = [scale.factor * (mode[seed] - solo[seed]) for seed in sorted(mode.keys() & solo.keys())]
    if not points:
        return None
    n = len(points)
    half = student.ppf((1 + CONFIDENCE) / 2, n - 1) * stdev(points) / math.sqrt(n) if n > 1 else None
    return Difference(n, fmean(points), None if half is None else float(half))


def by_seed(cell: Cell) -> dict[int, float]:
    """Final value of the runs that finished."""
    return {m.seed: m.final.eval for m in cell.ok if m.final.eval is not None}


def table(found: Sequence[Cell]) -> str:
    """The tables of all workloads in `found`, each with one sentence on who stays within the margin."""
    return "\n\n".join(_section(group) for group in by_workload(list(found)).values())


def _section(group: list[Cell]) -> str:
    solo = solo_of(group)
    reference = by_seed(solo) if solo else {}
    scale = SCALES[group[0].about.final.eval_metric]
    differences = {cell.label: paired(by_seed(cell), reference, scale) for cell in group if not cell.is_solo}
    workload = group[0].workload
    rows = [_row(cell, differences.get(cell.label), scale) for cell in group]
    if workload.model not in PUBLISHED:
        rows = [{name: value for name, value in row.items() if name != THEIRS} for row in rows]
    return f"### {workload.model} ({workload.detail})\n\n{frame.table(rows)}\n\n" + (_verdict(differences, scale))


def _row(cell: Cell, difference: Difference | None, scale: Scale) -> dict[str, str]:
    digits = 6 if cell.about.final.eval_metric == "mse" else 4
    sample, published = cell.eval, PUBLISHED.get(cell.workload.model, {})
    theirs, base = published.get(cell.about.mode), published.get("solo")
    gap = f" ({100 * (theirs - base):+.2f})" if theirs and base and not cell.is_solo else ""
    return {
        "mode": cell.label,
        "n": str(sample.n),
        cell.about.final.eval_metric: NONE if sample.mean is None else f"{sample.mean:.{digits}f}",
        "sd": NONE if sample.sd is None else f"{sample.sd:.{digits}f}",
        f"less solo, {scale.unit}": _shown(difference, scale),
        THEIRS: f"{theirs:.4f}{gap}" if theirs else NONE,
        "not finished": str(len(cell.runs) - len(cell.ok)),
    }


def _shown(difference: Difference | None, scale: Scale) -> str:
    if difference is None:
        return NONE
    interval = f" ± {difference.half:.{scale.digits}f}" if difference.half is not None else ""
    return f"{difference.mean:+.{scale.digits}f}{interval} (n={difference.n})"


def _verdict(differences: Mapping[str, Difference | None], scale: Scale) -> str:
    known = {label: d for label, d in differences.items() if d is not None}
    below = [label for label, d in known.items() if d.mean < -scale.margin]
    unknown = [label for label in differences if label not in known]
    unit = scale.unit.partition(",")[0]
    text = f"{len(known) - len(below)} of {len(differences)} modes are at most {scale.margin:g} {unit} worse than solo"
    text += f"; further: {', '.join(below)}" if below else ""
    return text + (f"; not comparable: {', '.join(unknown)}." if unknown else ".")


def main(root: Path) -> str:
    """The page over the runs in `root`. ValueError for a folder that cannot be read or holds an unreadable run."""
    found, problems = find_runs(root)
    if problems:
        raise ValueError(f"{problems[0]}; a table is not made from a tree with unreadable runs")
    about = (
        f"*Accuracy* (or the set-up's own metric): mean over the n finished runs, sd over seeds. "
        f"*Less solo*: mean over the seeds that both finished, "
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
