"""Differences between two samples of seeds, with intervals: of results as they are, of speeds as ratios. Pure.

The interval is that of the tests behind the verdicts (`bench.validate.statistics`): Student's t with pooled variances,
Welch's where one side plainly scatters more than the other, whichever it is; 95 %, two-sided. A seed counts once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.report.page import Page
from bench.results.cells import Cell, measured, solo_of
from bench.validate.statistics import Moments, compare

TAIL = 0.025
"""Of the interval, on each side."""


@dataclass(frozen=True)
class MeanDifference:
    """Mean of one sample less that of another, turned so that positive is better."""

    value: float
    low: float | None
    """Lower end of the 95 % interval; None where there are too few seeds for one."""
    high: float | None
    n: int
    n_base: int

    @property
    def decided(self) -> bool:
        """Whether zero is outside the interval."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


@dataclass(frozen=True)
class Quality:
    """A cell's final metric against solo's."""

    cell: Cell
    difference: MeanDifference
    margin: float | None
    """How much worse is still as good, fixed with the baseline of this workload; None: there is no such baseline."""

    @property
    def verdict(self) -> str:
        """`within`, `worse`, `open` (the interval holds the margin, or there is none), or `no margin`."""
        if self.margin is None:
            return "no margin"
        d = self.difference
        if d.low is None or d.high is None:
            return "open"
        return "within" if d.low > -self.margin else "worse" if d.high < -self.margin else "open"


def difference(
    base: Sequence[float | None], values: Sequence[float | None], higher_is_better: bool, resolution: float = 0.0
) -> MeanDifference | None:
    """Return the difference of the values that are there; None where a side has none. An interval needs two seeds on one
    side, and some spread or a resolution."""
    theirs, mine = measured(base), measured(values)
    if not theirs or not mine:
        return None
    if len(theirs) == 1 < len(mine):
        turned = difference(mine, theirs, not higher_is_better, resolution)
        return turned and replace(turned, n=len(mine), n_base=1)
    sign = 1.0 if higher_is_better else -1.0
    worse = Moments.of([-sign * value for value in theirs]), Moments.of([-sign * value for value in mine])
    gain = float(worse[0].mean - worse[1].mean) + 0.0
    if len(theirs) < 2 or (resolution <= 0 and (worse[0].sd <= 0 or (len(mine) > 1 and worse[1].sd <= 0))):
        return MeanDifference(gain, None, None, len(mine), len(theirs))
    low, high = compare(worse[0], worse[1], 0.0, resolution, either=True).bounds(TAIL)
    return MeanDifference(gain, -float(high), -float(low), len(mine), len(theirs))


def ratio(base: Sequence[float | None], values: Sequence[float | None]) -> MeanDifference | None:
    """Return the difference of mean logarithms, of positive values: its `exp` is the ratio of geometric means."""
    positive = [[math.log(value) for value in measured(side) if value > 0] for side in (base, values)]
    return difference(positive[0], positive[1], True)


def qualities(page: Page, cells: list[Cell]) -> list[Quality]:
    """Compare the cells of one workload that have a result with solo, which is left out; [] without solo."""
    solo = solo_of(cells)
    if solo is None:
        return []
    margin, resolution = _terms(page, solo)
    sign = solo.about.final.higher_is_better
    theirs = [m.final.eval for m in solo.one_each]
    others = [cell for cell in cells if cell is not solo]
    gaps = [difference(theirs, [m.final.eval for m in cell.one_each], sign, resolution) for cell in others]
    return [Quality(cell, gap, margin) for cell, gap in zip(others, gaps, strict=True) if gap is not None]


def _terms(page: Page, solo: Cell) -> tuple[float | None, float]:
    """Return margin and resolution of the final metric, from solo's baseline if it is of this very workload."""
    match = page.library.match(solo)
    if match is None or match.reference.workload != solo.workload:
        return None, 0.0
    quality = match.reference.metrics["quality"]
    return quality.margin, quality.resolution
