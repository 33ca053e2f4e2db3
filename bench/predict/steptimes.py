"""Step times of simulated ranks: blocks of what a rank measured, or drawn from a distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.results.analysis.stream import Floats

WARM = 10
"""Steps at the begin that are no sample of the others."""
LENGTH = 4096
"""Steps of a series; a rank that does more begins again."""
LONGEST_BLOCK = 64
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


def emulated(series: Floats, speed: float) -> Floats:
    """Return a series as a rank has it whose speed is emulated: each step is followed by a sleep of its typical length."""
    return series + (1 / speed - 1) * float(np.median(series))


@dataclass(frozen=True)
class StepDistribution:
    """A distribution of step times with mean 1."""

    name: str
    value: float
    more: float = 0.0

    def draw(self, length: int, dice: np.random.Generator) -> Floats:
        """Return step times over their mean."""
        value = self.value
        if self.name == "lognormal":
            return dice.lognormal(-(value**2) / 2, value, length)
        if self.name == "exponential":
            return 1 - value + dice.exponential(value, length) if value else np.ones(length)
        if self.name == "pareto":
            return (1 + dice.pareto(value, length)) * (value - 1) / value
        return _on_off(value, self.more, length, dice)


def _on_off(factor: float, part: float, length: int, dice: np.random.Generator) -> Floats:
    """Return steps that are `factor` times as long in `part` of all, in stretches of `LONGEST_BLOCK` in the mean."""
    leave = 1 / LONGEST_BLOCK
    enter = leave * part / (1 - part)
    slow, states = dice.random() < part, np.zeros(length)
    for place, chance in enumerate(dice.random(length).tolist()):
        slow = chance >= leave if slow else chance < enter
        states[place] = slow
    return (1 + (factor - 1) * states) / (1 + (factor - 1) * part)


BOUNDS = {
    "lognormal": ((0.0, 3.0),),
    "exponential": ((0.0, 1.0),),
    "pareto": ((1.05, 100.0),),
    "onoff": ((1.0, 1000.0), (0.001, 0.9)),
}
"""Name -> least and most of each of its numbers: standard deviation of the logarithm; part of the mean that is drawn;
exponent; how much longer, and in which part of the steps."""


def distribution(text: str) -> StepDistribution:
    """Read one: `lognormal:0.1`, `exponential:0.2`, `pareto:2.5`, `onoff:3:0.1`. Raises ValueError that shows the form."""
    name, *words = text.split(":")
    form = f"--steps {text}: write lognormal:SD, exponential:PART, pareto:EXPONENT or onoff:FACTOR:PART"
    bounds = BOUNDS.get(name, ())
    try:
        values = [float(word) for word in words]
    except ValueError:
        raise ValueError(form) from None
    if not bounds or len(values) != len(bounds):
        raise ValueError(form)
    for value, (least, most) in zip(values, bounds, strict=True):
        if not least <= value <= most:
            raise ValueError(f"--steps {text}: {value:g} must lie between {least:g} and {most:g}")
    return StepDistribution(name, *values)


def mean_of(series: Sequence[Floats]) -> float:
    """Return the mean step of several ranks, seconds."""
    return float(np.mean([each.mean() for each in series]))
