"""The significance levels behind the verdicts, and Student's test. All functions work on arrays, element by element, so
the same code judges one cell and a simulated million (`benchmarks.calibration`). Pure; knows no cells, files or
messages.

Seeds of a cell are compared by ranks (`bench.validate.statistics.rank_tests`); speeds and whole baselines by Student's test.

Larger is always worse: callers negate metrics for which larger is better, and take logarithms where margins are
relative. `worse` is the mean of the runs less that of the baseline, in the unit of the values.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bench.base import special

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

LOOKS = (3, 5, 8)
"""Numbers of seeds at which a cell is judged."""
SPENT = (0.020, 0.025, 0.030)
"""Level of each look. A cell that is worse by exactly its margin passes with at most 0.05 over all looks."""
PROOF = 0.01
"""Family-wise level of each look at which a loss counts as proved."""
VARIANCE = 0.01
"""Level of the variance test; if Student's test finds variances different at this level, it becomes Welch's."""
FOUND = 0.9
"""Probability of finding a loss that printed sensitivities refer to."""
GATING_SEEDS = 20
"""Least seeds of a baseline for a cell to fail that was not shown to be good enough."""
DEVIATIONS = 2.5
"""Margin in standard deviations of the baseline, if that exceeds the practical floor."""


@dataclass(frozen=True)
class Moments:
    """The moments of samples, one sample per element. `sd` has ddof 1, and is 0 for n = 1."""

    n: Floats
    mean: Floats
    sd: Floats

    @staticmethod
    def of(values: ArrayLike) -> Moments:
        """Return the moments of samples along the last axis."""
        array = np.asarray(values, np.float64)
        count = array.shape[-1]
        sd = array.std(axis=-1, ddof=1) if count > 1 else np.zeros(array.shape[:-1])
        return Moments(np.full(array.shape[:-1], float(count)), array.mean(axis=-1), np.asarray(sd))


@dataclass(frozen=True)
class Comparison:
    """The comparison of runs with their baseline. All p-values are one-sided."""

    worse: Floats
    error: Floats
    """Standard error of `worse`."""
    df: Floats
    welch: Flags
    """Whether the variances differ too much to be pooled."""
    p_inferior: Floats
    """Small: worse by more than the margin."""
    p_noninferior: Floats
    """Small: worse by less than the margin, if at all."""
    p_better: Floats
    """Small: better by more than the margin, which asks for an explanation."""
    p_worse: Floats
    """Small: worse, by whatever amount."""
    p_variance: Floats
    """Small: the runs scatter more than the baseline. 1 for a single run."""

    @property
    def gross(self) -> Flags:
        """Return false everywhere: Student's test has no loss that is too large to need a test."""
        return np.zeros(np.shape(self.worse), np.bool_)

    gross_better = gross

    def bounds(self, at: ArrayLike) -> tuple[Floats, Floats]:
        """Return one-sided bounds of `worse`, each at level `at`."""
        reach = special.stdtrit(self.df, 1 - np.asarray(at, np.float64)) * self.error
        return self.worse - reach, self.worse + reach


def compare(
    base: Moments, run: Moments, margin: ArrayLike, resolution: ArrayLike = 0.0, *, either: bool = False
) -> Comparison:
    """Test non-inferiority, inferiority and superiority by `margin`, and whether variances differ.

    Variances are pooled unless a test at `VARIANCE` finds that the runs scatter more; with `either`, that any side
    does. Verdicts expect the baseline to scatter less; `either` is for two samples of equal standing.

    Standard deviations are at least that of rounding to `resolution`, so a baseline of equal seeds divides by no zero.
    Raises ValueError if a baseline has fewer than two values, or neither it nor the resolution has any spread.
    """
    least = np.asarray(resolution, np.float64) / np.sqrt(12)
    s0, s1 = np.maximum(base.sd, least), np.maximum(run.sd, least)
    if np.any(base.n < 2) or np.any(s0 <= 0):
        raise ValueError("a baseline needs two values or more, with some spread or a resolution")
    several = run.n > 1
    p_variance = np.where(several, special.fdtrc(np.maximum(run.n - 1, 1), base.n - 1, (s1 / s0) ** 2), 1.0)
    p_apart = np.minimum(2 * np.minimum(p_variance, 1 - p_variance), 1.0) if either else p_variance
    welch = np.asarray(several & (p_apart < VARIANCE), np.bool_)
    error, df = _error(base.n, s0, run.n, s1, welch)
    worse = np.asarray(run.mean - base.mean, np.float64)
    beyond = np.asarray(margin, np.float64)
    return Comparison(
        worse=worse,
        error=error,
        df=df,
        welch=welch,
        p_inferior=np.asarray(special.stdtr(df, (beyond - worse) / error)),
        p_noninferior=np.asarray(special.stdtr(df, (worse - beyond) / error)),
        p_better=np.asarray(special.stdtr(df, (worse + beyond) / error)),
        p_worse=np.asarray(special.stdtr(df, -worse / error)),
        p_variance=np.asarray(p_variance),
    )


def _error(n0: Floats, s0: Floats, n1: Floats, s1: Floats, welch: Flags) -> tuple[Floats, Floats]:
    """Return (standard error of a difference of means, its degrees of freedom): pooled, or Welch's."""
    df1 = np.maximum(n1 - 1, 1)
    v0, v1 = s0**2 / n0, s1**2 / n1
    df_pooled = n0 + n1 - 2
    pooled = ((n0 - 1) * s0**2 + (n1 - 1) * s1**2) / df_pooled
    df_welch = (v0 + v1) ** 2 / (v0**2 / (n0 - 1) + v1**2 / df1)
    error = np.where(welch, np.sqrt(v0 + v1), np.sqrt(pooled * (1 / n0 + 1 / n1)))
    return error, np.where(welch, df_welch, df_pooled)


def holm(p: ArrayLike) -> Floats:
    """Adjust p-values over the family, the last axis (S. Holm 1979): comparing each with a level then holds the level
    for all."""
    array = np.atleast_1d(np.asarray(p, np.float64))
    count = array.shape[-1]
    order = np.argsort(array, axis=-1, kind="stable")
    stepped = np.take_along_axis(array, order, axis=-1) * (count - np.arange(count))
    adjusted = np.empty_like(array)
    np.put_along_axis(adjusted, order, np.minimum(np.maximum.accumulate(stepped, axis=-1), 1.0), axis=-1)
    return adjusted


def level(seeds: ArrayLike) -> Floats:
    """Return the level of the look at so many seeds; 0 below the first look, where nothing can pass."""
    places = np.searchsorted(np.array(LOOKS), np.asarray(seeds), side="right")
    return np.array([0.0, *SPENT])[places]


def look(seeds: int) -> int:
    """Return how many of so many seeds to judge: those of the last look that they suffice for; below the first, all.

    Judging at numbers in between would be further looks, for which no level is left.
    """
    return max((size for size in LOOKS if size <= seeds), default=seeds)


def next_look(seeds: int) -> int | None:
    """Return the number of seeds of the next look; None after the last."""
    return min((size for size in LOOKS if size > look(seeds)), default=None)


def detectable(comparison: Comparison, margin: float, seeds: int) -> Floats:
    """Return the smallest loss that Student's test at so many seeds would not pass with probability `FOUND`; NaN below
    the first look."""
    at = float(level(seeds))
    reach = special.stdtrit(comparison.df, FOUND) - special.stdtrit(comparison.df, 1 - at) if at else np.nan
    return np.asarray(margin + reach * comparison.error)


class Evidence(Protocol):
    """The p-values of a comparison, one-sided."""

    @property
    def p_inferior(self) -> Floats: ...
    @property
    def p_noninferior(self) -> Floats: ...
    @property
    def p_worse(self) -> Floats: ...
    @property
    def gross(self) -> Flags: ...


class Call(IntEnum):
    """Outcome of a comparison."""

    PASS = 0
    """Not inferior: worse by less than the margin, shown at the level of the look."""
    INFERIOR = 1
    """Worse by more than the margin, proved at `PROOF` over the family, or `gross`."""
    NOT_SHOWN = 2
    """Not shown to be non-inferior after all looks, against a baseline with enough seeds, and proved to be worse."""
    INCONCLUSIVE = 3
    """None of these."""


def decide(evidence: Evidence, seeds: ArrayLike, base_seeds: ArrayLike) -> NDArray[np.int64]:
    """Return the `Call` of each comparison after a look at `seeds` runs each. The last axis is the family of one
    validation.

    A cell fails only if it is shown to be worse than its baseline at level `PROOF` over the family. So if all cells are
    equal, any one fails at a look with at most that probability, for any distribution. (`gross` is extra: one in 1,771
    at three seeds.)
    """
    count = np.asarray(seeds)
    passed = evidence.p_noninferior < level(count)
    proved = (holm(evidence.p_inferior) <= PROOF) | evidence.gross
    worse = holm(evidence.p_worse) <= PROOF
    final = (count >= LOOKS[-1]) & (np.asarray(base_seeds) >= GATING_SEEDS)
    return np.select(
        [proved, passed, final & worse],
        [Call.INFERIOR, Call.PASS, Call.NOT_SHOWN],
        Call.INCONCLUSIVE,
    ).astype(np.int64)


def power(ratio: ArrayLike, seeds: int, base_seeds: ArrayLike) -> Floats:
    """Return the chance that Student's test at `seeds` runs passes a cell that equals its baseline, by the noncentral
    t.

    `ratio` is the margin in standard deviations of both.
    """
    base = np.asarray(base_seeds, np.float64)
    df = base + seeds - 2
    shift = np.asarray(ratio, np.float64) / np.sqrt(1 / base + 1 / seeds)
    # Beyond 30 standard errors the chance is 1 in double precision, and the series of the noncentral t does not
    # converge.
    return np.asarray(1 - special.nctdtr(df, np.minimum(shift, 30.0), special.stdtrit(df, 1 - level(seeds))))
