"""Step times of simulated ranks: resampled blocks of measured ones, and statistics of these."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bench.results.analysis.stream import Floats
from ddp.sim.distributions import LONGEST_BLOCK

WARM = 10
"""First steps, which are not representative of the others."""
LENGTH = 4096
"""Steps of a series; a rank that does more repeats it."""
SLOW = 84
"""Percentile of a slow step."""
KNEE = 1 / math.e
"""Autocorrelation below which steps count as independent."""


@dataclass(frozen=True)
class StepShape:
    """Statistics of a series of step times."""

    mean_s: float
    spread: float
    """Standard deviation of the logarithms."""
    tail: float
    """99th percentile / median."""
    autocorrelation: float
    """Autocorrelation of neighbouring steps."""


def shape(series: Floats) -> StepShape:
    """Return the shape of a series of positive step times."""
    logs = np.log(np.maximum(series, 1e-9))
    p50, p99 = (float(value) for value in np.percentile(series, [50, 99]))
    return StepShape(float(series.mean()), float(logs.std()), p99 / p50 if p50 else 1.0, autocorrelation(series, 1))


def autocorrelation(series: Floats, lag: int) -> float:
    """Return the autocorrelation of steps that are `lag` apart; 0 for a series that is constant or too short."""
    off = series - series.mean()
    power = float((off**2).sum())
    return float((off[lag:] * off[:-lag]).sum()) / power if power > 0 and series.size > lag else 0.0


def block_length(series: Floats) -> int:
    """Return the number of steps in a block: the least lag at which the autocorrelation is below `KNEE`."""
    most = min(LONGEST_BLOCK, max(series.size // 4, 1))
    return next((lag for lag in range(1, most) if autocorrelation(series, lag) < KNEE), most)


def resampled(series: Floats, length: int, dice: np.random.Generator) -> Floats:
    """Return `length` steps made of blocks of the series, which keep its mean, spread, tail and autocorrelation."""
    size = min(block_length(series), series.size)
    first = dice.integers(0, series.size - size + 1, -(-length // size))
    places = (first[:, None] + np.arange(size)).ravel()[:length]
    return np.asarray(series[places], np.float64)


def scaled_draws(
    draw: Callable[[int, np.random.Generator, int], Floats], ranks: int, count: int, dice: np.random.Generator
) -> list[Floats]:
    """Return, by rank, `count` relative step times (at most `LENGTH`) repeated to `LENGTH`; their mean over all ranks is
    1, as the draws of a heavy tail are mostly below its mean."""
    drawn = [draw(min(count, LENGTH), dice, rank) for rank in range(ranks)]
    mean = mean_of(drawn) or 1.0
    return [np.resize(each / mean, LENGTH) for each in drawn]


def asleep(series: Floats, speed: float, step_s: float | Floats = 0.0) -> Floats:
    """Return the seconds that a rank of an emulated speed sleeps after each step: one value, in proportion to its median
    step, or for the rest of `step_s / speed` one for each step. `step_s` may differ by step."""
    if np.any(step_s):
        return (step_s / speed - series).clip(0)
    return np.array([(1 / speed - 1) * float(np.median(series))])


def slow_part(series: Floats) -> float:
    """Return the ratio of a slow step (one of six is slower) to the median one."""
    median, slow = np.percentile(series, [50, SLOW])
    return float(slow / median) if median > 0 else 1.0


def mean_of(series: Sequence[Floats]) -> float:
    """Return the mean step time of several ranks, seconds."""
    return float(np.mean([each.mean() for each in series]))
