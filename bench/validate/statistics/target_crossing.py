"""When a run reached a target, by its epochs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from bench.results.schema import Metrics


def samples_to(metrics: Metrics, target: float) -> float | None:
    """Return the samples that all ranks had trained when the evaluation metric reached `target`; None if it never did.

    The crossing is interpolated between the evaluations before and after it, on a running median of three. So neither
    the length of an epoch nor one lucky evaluation decides.
    """
    points = [(row.samples, row.eval) for row in metrics.epochs if row.eval is not None]
    sign = 1.0 if metrics.final.higher_is_better else -1.0
    return crossing([p[0] for p in points], [sign * p[1] for p in points], sign * target)


def crossing(at: Sequence[float], values: Sequence[float], target: float) -> float | None:
    """Return where the smoothed `values` first rise to `target`, interpolated; None: never."""
    smooth = [median(values[max(i - 1, 0) : i + 2]) for i in range(len(values))]
    if smooth:  # the median of two is their mean, which neither may have been
        smooth[0], smooth[-1] = values[0], values[-1]
    for i, value in enumerate(smooth):
        if value >= target:
            if i == 0:
                return float(at[0])
            share = (target - smooth[i - 1]) / (value - smooth[i - 1])
            return float(at[i - 1] + share * (at[i] - at[i - 1]))
    return None
