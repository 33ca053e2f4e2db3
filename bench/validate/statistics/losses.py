"""The final losses, which are compared besides the metric: what each is, and how much worse it may be. They scatter far
less.

The floor of a loss's margin is the change of the loss that goes with the floor of the metric, in the baseline's own
course of training. Knows no files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from bench.results.schema import Epoch, Metrics
from bench.validate.statistics.significance import DEVIATIONS, Moments

SHARE = 0.005
"""Floor of a loss as a fraction of its mean, where the course of the baseline gives none."""


def eval_loss(m: Metrics) -> float | None:
    """Return the loss of the last evaluation."""
    return next((row.eval_loss for row in reversed(m.epochs) if row.eval is not None), None)


def train_loss(m: Metrics) -> float | None:
    """Return the mean training loss of the last epoch."""
    return m.final.train_loss


def first_loss(m: Metrics) -> float | None:
    """Return the mean training loss of epoch 0; None for a run that was resumed or did not begin there."""
    return m.epochs[0].train_loss if m.epochs and m.epochs[0].epoch == 0 and m.resumed is None else None


LOSSES: dict[str, Callable[[Metrics], float | None]] = {"eval_loss": eval_loss, "train_loss": train_loss}
"""Name of a baseline's metric, which is also its check's -> function that takes it from a run."""
MOST = 4.0
"""Most by which a measured change is scaled up: of a metric that moved by one sample, the margin was several losses."""
_COLUMNS: dict[str, Callable[[Epoch], float | None]] = {
    "eval_loss": lambda row: row.eval_loss,
    "train_loss": lambda row: row.train_loss,
}


def loss_metrics(runs: Sequence[Metrics], floor: float) -> dict[str, Any]:
    """Return the metrics of a baseline for the losses that every run has, except for a loss that is the metric itself.
    `floor`: of the metric, in its unit."""
    bodies = {}
    for name, value in LOSSES.items():
        values = [value(m) for m in runs]
        known = [each for each in values if each is not None]
        if len(known) == len(runs) and (name != "eval_loss" or known != [m.final.eval for m in runs]):
            bodies[name] = _body(runs, name, known, floor)
    return bodies


def _body(runs: Sequence[Metrics], name: str, values: Sequence[float], floor: float) -> dict[str, Any]:
    least, how = loss_floor(runs, name, floor) or (SHARE * abs(median(values)), f"{SHARE:.1%} of it")
    ordered = sorted(set(values))
    rounding = 1e-6 * max(abs(ordered[-1]), 1e-6)
    resolution = max(min((b - a for a, b in pairwise(ordered)), default=rounding), rounding)
    spread = DEVIATIONS * float(Moments.of(values).sd)
    why = f"the floor ({how}), over {DEVIATIONS:g} sd = {spread:.4g}"
    if spread > least:
        why = f"{DEVIATIONS:g} sd, over the floor of {least:.4g} ({how})"
    return {
        "unit": "loss",
        "higher_is_better": False,
        "scale": "linear",
        "margin": max(least, spread, rounding),
        "margin_why": why,
        "resolution": resolution,
        "values": [{"seed": m.seed, "value": v, "run_id": m.run_id} for m, v in zip(runs, values, strict=True)],
    }


def loss_floor(runs: Sequence[Metrics], name: str, floor: float) -> tuple[float, str] | None:
    """Return (change of a loss while the metric changes by `floor`, how that was measured); None if the course does not
    show it: the metric was hardly worse than at the end (`MOST`), or the loss not larger.

    Walks back from the last epoch, over medians of the seeds, to the first epoch that is worse by `floor`, else to the
    worst one. The change of the loss since then is scaled to `floor`.
    """
    column, sign = _COLUMNS[name], -1.0 if runs[0].final.higher_is_better else 1.0
    points = [(row, sign * quality, loss) for row, quality, loss in _course(runs, column)]
    if not points or floor <= 0:
        return None
    _, end, last = points[-1]
    gaps = [(row, quality - end, loss - last) for row, quality, loss in points[-2::-1]]
    chosen = next((gap for gap in gaps if gap[1] >= floor), max(gaps, key=lambda gap: gap[1], default=None))
    if chosen is None or chosen[2] <= 0 or MOST * chosen[1] < floor:
        return None
    epoch, gap, change = chosen
    metric = runs[0].final.eval_metric
    how = f"what goes with {floor:.4g} of {metric}: {change:.4g} with {gap:.4g} since epoch {epoch}"
    return change / gap * floor, how


def _course(runs: Sequence[Metrics], column: Callable[[Epoch], float | None]) -> list[tuple[int, float, float]]:
    """Return (epoch, metric, loss), medians over the runs, of the epochs that all runs have evaluated."""
    points = []
    for rows in zip(*(m.epochs for m in runs), strict=False):
        qualities = [row.eval for row in rows if row.eval is not None]
        losses = [loss for row in rows if (loss := column(row)) is not None]
        if len(qualities) == len(losses) == len(runs):
            points.append((rows[0].epoch, median(qualities), median(losses)))
    return points
