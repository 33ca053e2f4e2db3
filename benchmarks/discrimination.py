"""Measures which losses verdicts detect: one cell of 48 has a known loss, drawn from the seeds of the committed
baselines.

`python -m benchmarks.discrimination` prints the table of docs/explanation/validation.md; `--write` puts it there. Seeded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.validate.baselines.folder import load
from bench.validate.baselines.reference import Metric, Reference
from bench.validate.statistics.rank_tests import shift
from bench.validate.statistics.significance import LOOKS, Call, Flags, Floats, decide
from benchmarks import frame
from benchmarks.documents import put

BASELINES = Path("baselines")
CELLS, DRAWS = 48, 4_000
POINTS = (0.0, 0.5, 1.0)
"""True losses: hundredths of an accuracy, hundredths of the mean of another metric."""


@dataclass(frozen=True)
class _Family:
    """One cell's evidence beside that of others, which have none."""

    p_inferior: Floats
    p_noninferior: Floats
    p_worse: Floats
    gross: Flags


def shares(metric: Metric, points: float, seeds: int, draws: int = DRAWS) -> tuple[float, float, float]:
    """Return how often cells of so many seeds that are worse by `points` come to (PASS, INCONCLUSIVE, FAIL)."""
    base = np.array(metric.turned_values)
    loss = points / 100 * (1.0 if metric.unit == "fraction" else abs(float(base.mean())))
    runs = np.random.default_rng(seeds).choice(base, (draws, seeds)) + loss
    found = shift(np.tile(base, (draws, 1)), runs, np.full(draws, metric.margin))
    ones, no = np.ones((draws, CELLS - 1)), np.zeros((draws, CELLS - 1), np.bool_)
    p = [np.column_stack([each, ones]) for each in (found.p_inferior, found.p_noninferior, found.p_worse)]
    family = _Family(p[0], p[1], p[2], np.column_stack([found.gross, no]))
    calls = decide(family, np.full((draws, CELLS), seeds), np.full((draws, CELLS), len(base)))[:, 0]
    passed, open_ = float((calls == Call.PASS).mean()), float((calls == Call.INCONCLUSIVE).mean())
    return passed, open_, float(np.isin(calls, (Call.INFERIOR, Call.NOT_SHOWN)).mean())


def table(references: Sequence[Reference]) -> str:
    """The table, in Markdown: percentages of PASS / INCONCLUSIVE / FAIL."""
    rows = []
    for reference in sorted(references, key=lambda r: r.model):
        metric = reference.metrics["quality"]
        cells = [shares(metric, points, seeds) for points in POINTS for seeds in LOOKS]
        margin = metric.margin if metric.unit == "fraction" else metric.margin / abs(float(np.mean(metric.raw)))
        rows.append([reference.model, f"{100 * margin:.2f}", *("/".join(f"{100 * x:.0f}" for x in c) for c in cells)])
    headers = ["model", "margin", *(f"{points:g} at {seeds}" for points in POINTS for seeds in LOOKS)]
    return frame.table(rows, headers, left=1)


def main() -> None:
    """Print the table, or write it."""
    parser = frame.options(__doc__, "put the table into docs/explanation/validation.md")
    asked = parser.parse_args()
    text = table([r for r in load(BASELINES).references if r.engine == "solo"])
    print(text)
    if asked.write:
        put("explanation/validation.md", discrimination=text)


if __name__ == "__main__":
    main()
