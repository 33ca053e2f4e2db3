"""Intervals of predictions, from the scatter of repeated runs, the error of the model, and untestable assumptions. Pure
arithmetic.

Another run of a cell lies in its interval with probability `LEVEL`. Runs of one cell scatter more than the steps of a
run, and the mean of few is uncertain, so Student's t over repeated runs is used. The error of the model grows with the
distance from the calibrated cell, per doubling as runs of other cells show, or else as the cell's own prediction errs.
Assumptions that no run can test, such as how costs grow with ranks, are played both ways, and the interval covers both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from scipy import stats

LEVEL = 0.9
"""Probability of an interval."""
ENOUGH = 3
"""Runs of a cell for a useful interval; two runs give one about five times as wide."""


def half_width(logs: Sequence[float]) -> float:
    """Return half the width of an interval for one further value, by Student's t; infinite for fewer than two
    values."""
    if len(logs) < 2:
        return math.inf
    quantile = float(stats.t.ppf((1 + LEVEL) / 2, len(logs) - 1))
    return quantile * stdev(logs) * math.sqrt(1 + 1 / len(logs))


def interval(
    measured: Sequence[float], predicted: Sequence[float], corners: Sequence[float], off: float, distance: float
) -> tuple[float, float, float]:
    """Return (predicted rate, lower end, upper end of its interval).

    `measured`: rates of repeated runs of the calibrated cell; `predicted`: rates of the other cell, predicted from each
    run; with a single run the ends are NaN. `corners`: rates under other assumptions, relative to the predicted one.
    `off`: relative error of the model at distance one; `distance`: of the cell from the calibrated one.
    """
    logs = [math.log(rate) for rate in predicted]
    rate = math.exp(fmean(logs))
    if len(logs) < 2:
        return rate, math.nan, math.nan
    spread = max(half_width(logs), half_width([math.log(each) for each in measured]))
    half = spread + math.log1p(abs(off)) * distance
    return rate, rate * min([1.0, *corners]) * math.exp(-half), rate * max([1.0, *corners]) * math.exp(half)
