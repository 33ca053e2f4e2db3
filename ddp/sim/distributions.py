"""Distributions of step times, drawn with a given random generator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Series = NDArray[np.float64]
LONGEST_BLOCK = 64
"""Longest block of consecutive steps that is resampled as a whole; mean length of a slow stretch in `onoff`."""


@dataclass(frozen=True)
class StepDistribution:
    """A distribution of step times with mean 1."""

    name: str
    value: float
    more: float = 0.0

    def draw(self, length: int, dice: np.random.Generator, rank: int = 0) -> Series:
        """Return `length` step times relative to their mean; all ranks have the same distribution."""
        value = self.value
        if self.name == "lognormal":
            return dice.lognormal(-(value**2) / 2, value, length)
        if self.name == "exponential":
            return 1 - value + dice.exponential(value, length) if value else np.ones(length)
        if self.name == "pareto":
            return (1 + dice.pareto(value, length)) * (value - 1) / value
        return _on_off(value, self.more, length, dice)


def _on_off(factor: float, part: float, length: int, dice: np.random.Generator) -> Series:
    """Return step times that are `factor` times as long in `part` of all steps, in stretches of LONGEST_BLOCK steps on
    average."""
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
"""Name -> (least, most) of each parameter: standard deviation of the logarithm; random part of the mean; exponent; factor
of slow steps, and their fraction."""


def distribution(text: str, key: str = "--steps") -> StepDistribution:
    """Parse one: `lognormal:0.1`, `exponential:0.2`, `pareto:2.5`, `onoff:3:0.1`. Raises ValueError that shows the form."""
    name, *words = text.split(":")
    form = f"{key} {text}: write lognormal:SD, exponential:PART, pareto:EXPONENT or onoff:FACTOR:PART"
    bounds = BOUNDS.get(name, ())
    try:
        values = [float(word) for word in words]
    except ValueError:
        raise ValueError(form) from None
    if not bounds or len(values) != len(bounds):
        raise ValueError(form)
    for value, (least, most) in zip(values, bounds, strict=True):
        if not least <= value <= most:
            raise ValueError(f"{key} {text}: {value:g} must lie between {least:g} and {most:g}")
    return StepDistribution(name, *values)
