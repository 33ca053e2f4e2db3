"""Step times of simulated ranks: blocks of what a rank measured, and what these are like."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.results.analysis.stream import Floats
from ddp.sim.distributions import LONGEST_BLOCK

WARM = 10
"""Steps at the begin that are no sample of the others."""
LENGTH = 4096
"""Steps of a series; a rank that does more begins again."""
SLOW = 84
"""Percentile of slow steps."""
KNEE = 1 / math.e
"""Steps further apart than this autocorrelation says count as independent."""


@dataclass(frozen=True)
class StepShape:
    """What a series of step times is like."""

    mean_s: float
    spread: float
    """Standard deviation of the logarithm."""
    tail: float
    """99th percentile / median."""
    autocorrelation: float
    """Of neighbouring steps."""


def shape(series: Floats) -> StepShape:
    """Return the shape of a series of positive step times."""
    logs = np.log(np.maximum(series, 1e-9))
    p50, p99 = (float(value) for value in np.percentile(series, [50, 99]))
    return StepShape(float(series.mean()), float(logs.std()), p99 / p50 if p50 else 1.0, autocorrelation(series, 1))


def autocorrelation(series: Floats, lag: int) -> float:
    """Return the correlation of steps that are `lag` apart; 0 of a constant series or one that is too short."""
    off = series - series.mean()
    power = float((off**2).sum())
    return float((off[lag:] * off[:-lag]).sum()) / power if power > 0 and series.size > lag else 0.0


def block_length(series: Floats) -> int:
    """Return how many steps belong together: until the autocorrelation falls below `KNEE`."""
    most = min(LONGEST_BLOCK, max(series.size // 4, 1))
    return next((lag for lag in range(1, most) if autocorrelation(series, lag) < KNEE), most)


def resampled(series: Floats, length: int, dice: np.random.Generator) -> Floats:
    """Return `length` steps made of blocks of the series, which keep its mean, spread, tail and autocorrelation."""
    size = min(block_length(series), series.size)
    first = dice.integers(0, series.size - size + 1, -(-length // size))
    places = (first[:, None] + np.arange(size)).ravel()[:length]
    return np.asarray(series[places], np.float64)


def asleep(series: Floats, speed: float) -> float:
    """Return the seconds that a rank of an emulated speed sleeps behind each step: as its typical step is longer."""
    return (1 / speed - 1) * float(np.median(series))


def slow_part(series: Floats) -> float:
    """Return by what a slow step, one of six, is longer than the median one."""
    median, slow = np.percentile(series, [50, SLOW])
    return float(slow / median) if median > 0 else 1.0


def mean_of(series: Sequence[Floats]) -> float:
    """Return the mean step of several ranks, seconds."""
    return float(np.mean([each.mean() for each in series]))
