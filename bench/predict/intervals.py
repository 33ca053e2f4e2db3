"""Intervals of predictions: how repeated runs differ, how far the model is off, what no run tells of. Pure arithmetic.

A further run of a cell lies within an interval with probability `LEVEL`. Runs of one cell differ by more than the steps
within a run, and a mean of few is uncertain: Student's t over repeated runs. The model is off by so much for each doubling
of what was calibrated: as far as runs of other cells show, or as far as it misses its own runs. What no run decides, such as
the law by which costs grow, is played both ways, and the interval holds both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from scipy import stats

LEVEL = 0.9
"""Of intervals."""
ENOUGH = 3
"""Runs of a cell from which its interval is narrow enough to be of use; two give one that is some five times as wide."""


def half_width(logs: Sequence[float]) -> float:
    """Return half the width of an interval for one further value, by Student's t; infinite for fewer than two."""
    if len(logs) < 2:
        return math.inf
    quantile = float(stats.t.ppf((1 + LEVEL) / 2, len(logs) - 1))
    return quantile * stdev(logs) * math.sqrt(1 + 1 / len(logs))


def interval(
    measured: Sequence[float], predicted: Sequence[float], corners: Sequence[float], off: float, distance: float
) -> tuple[float, float, float]:
    """Return the rate that is predicted, and the lower and upper end of its interval.

    `measured`: rates of repeated runs of the calibrated cell; `predicted`: of the other cell, from each of them; one run:
    the ends are nan. `corners`: rates under each other assumption, in parts of the predicted one. `off`: error of the model,
    relative, for a distance of one; `distance`: of the cell from what was calibrated.
    """
    logs = [math.log(rate) for rate in predicted]
    rate = math.exp(fmean(logs))
    if len(logs) < 2:
        return rate, math.nan, math.nan
    spread = max(half_width(logs), half_width([math.log(each) for each in measured]))
    half = spread + math.log1p(abs(off)) * distance
    return rate, rate * min([1.0, *corners]) * math.exp(-half), rate * max([1.0, *corners]) * math.exp(half)
