"""Rank tests of a shift between two samples: exact for any distribution, if both have the same shape.

The statistic is that of Mann, Whitney and Wilcoxon: the number of pairs (run, baseline seed) in which the run is worse
by more, or by less, than a margin. Ties count against the claim. All functions work on arrays, element by element, as
in `bench.validate.statistics.significance`; larger is worse. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import comb

import numpy as np
from numpy.typing import ArrayLike

from bench.validate.statistics.significance import FOUND, LOOKS, Flags, Floats, level

DRAWS = 1000
"""Samples drawn from a baseline's values to estimate what a test would have found."""
GROSS, GROSS_OF_FEW = 1.0, 5.0
"""Margins between the baseline's worst seed and a cell's best one that make a test unnecessary: from the first look on,
and for fewer seeds, which have no test."""


@lru_cache(maxsize=1024)
def survival(n: int, m: int) -> Floats:
    """Return P(U >= u) for u from 0 to nm + 1, if both samples (n >= 1 and m >= 1 values) have one distribution; U
    counts pairs.

    Exact: the coefficients of the Gaussian binomial.
    """
    counts = [1] + [0] * (n * m)
    for i in range(1, n + 1):
        for k in range(n * m, m + i - 1, -1):
            counts[k] -= counts[k - m - i]
        for k in range(i, n * m + 1):
            counts[k] += counts[k - i]
    tail = np.array([*counts, 0], np.float64)[::-1].cumsum()[::-1]
    return np.asarray(tail / comb(n + m, n))


def critical(n: int, m: int, at: float) -> int:
    """Return the least u with P(U >= u) <= `at`; nm + 1 if there is none."""
    return int(np.argmax(survival(n, m) <= at))


@dataclass(frozen=True)
class Shift:
    """The comparison of runs with their baseline. All p-values are one-sided."""

    differences: Floats
    """Each run less each seed of the baseline, along the last axis; NaN where either has no value."""
    n: Floats
    n_base: Floats
    p_inferior: Floats
    """Small: worse by more than the margin."""
    p_noninferior: Floats
    """Small: worse by less than the margin, if at all."""
    p_better: Floats
    """Small: better by more than the margin, which asks for an explanation."""
    p_worse: Floats
    """Small: worse, by whatever amount."""
    gross: Flags
    """Every run is worse than the baseline's worst seed by `GROSS` margins."""
    gross_better: Flags
    """Every run is better than the baseline's best seed by as many margins."""

    @property
    def worse(self) -> Floats:
        """Estimate the shift: the median difference of all pairs (J. Hodges, E. Lehmann 1963)."""
        return np.asarray(np.nanmedian(self.differences, axis=-1))

    def bounds(self, at: float) -> tuple[float, float]:
        """Return one-sided bounds of one comparison's shift, each at level `at`: the shifts that the tests do not
        reject."""
        ordered = np.sort(self.differences[~np.isnan(self.differences)])
        place = critical(int(self.n), int(self.n_base), at)
        if place > len(ordered):
            return -np.inf, np.inf
        return float(ordered[len(ordered) - place]), float(ordered[place - 1])


def shift(base: ArrayLike, run: ArrayLike, margin: ArrayLike) -> Shift:
    """Compare samples along the last axis. NaN: the seed has no value; infinity: it has the worst possible one."""
    theirs, mine = np.asarray(base, np.float64), np.asarray(run, np.float64)
    beyond = np.asarray(margin, np.float64)
    n, m = (~np.isnan(mine)).sum(axis=-1), (~np.isnan(theirs)).sum(axis=-1)
    with np.errstate(invalid="ignore"):
        pairs = mine[..., :, None] - theirs[..., None, :]
    pairs = np.where(np.isinf(mine)[..., :, None] & np.isinf(theirs)[..., None, :], 0.0, pairs)
    flat = pairs.reshape(*pairs.shape[:-2], -1)
    edge = beyond[..., None]
    tails = [_tail(kind.sum(axis=-1), n, m) for kind in (flat > edge, flat < edge, flat < -edge, flat > 0)]
    apart = np.where(n >= LOOKS[0], GROSS, GROSS_OF_FEW)
    known = ~np.isnan(flat)
    least, most = (
        np.min(flat, axis=-1, initial=np.inf, where=known),
        np.max(flat, axis=-1, initial=-np.inf, where=known),
    )
    there = (n > 0) & (m > 1)
    worse, better = there & (least > apart * beyond), there & (most < -apart * beyond)
    sizes = np.asarray(n, np.float64), np.asarray(m, np.float64)
    return Shift(flat, *sizes, tails[0], tails[1], tails[2], tails[3], np.asarray(worse), np.asarray(better))


def _tail(count: Floats, n: Floats, m: Floats) -> Floats:
    """Look up P(U >= count) for samples of `n` and `m` values; 1 if one is empty."""
    tail = np.ones(np.shape(count))
    for size, base in {(int(a), int(b)) for a, b in zip(np.ravel(n), np.ravel(m), strict=True)}:
        if size and base:
            chosen = (n == size) & (m == base)
            tail = np.where(chosen, survival(size, base)[np.where(chosen, count, 0)], tail)
    return tail


def scatter(base: ArrayLike, run: ArrayLike) -> Floats:
    """Return p-values of the claim that runs scatter more than their baseline: rank tests of the distances from each
    sample's own median, without the least distance, as the median is itself a value (NaN: no value; 1 if a side has
    fewer than three)."""
    theirs, mine = (_distances(np.asarray(side, np.float64)) for side in (base, run))
    n, m = ((~np.isnan(side)).sum(axis=-1) for side in (mine, theirs))
    count = (mine[..., :, None] > theirs[..., None, :]).sum(axis=(-1, -2))
    return np.where((n > 1) & (m > 1), _tail(count, n, m), 1.0)


def _distances(values: Floats) -> Floats:
    """Return the distances from the median, sorted, without the first, which is the median's own."""
    ordered = np.sort(values, axis=-1)  # NaN sorts last
    count = (~np.isnan(values)).sum(axis=-1, keepdims=True)
    places = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, values.shape[-1] - 1)
    middle = sum(np.take_along_axis(ordered, place, axis=-1) for place in places) / 2
    return np.asarray(np.sort(np.abs(values - middle), axis=-1)[..., 1:])


@lru_cache(maxsize=1024)
def limits(values: tuple[float, ...], seeds: int, margin: float) -> tuple[float, float]:
    """Return (chance that the look at `seeds` passes an equal cell, smallest loss that it would not pass with
    probability `FOUND`).

    Both are estimated from samples drawn from a baseline's values. (0, NaN) if so few seeds cannot pass.
    """
    place = critical(seeds, len(values), float(level(seeds)))
    if place > seeds * len(values):
        return 0.0, float("nan")
    draw = np.random.default_rng(0).choice(np.array(values), (DRAWS, len(values) + seeds))
    pairs = (draw[:, :seeds, None] - draw[:, None, seeds:]).reshape(DRAWS, -1)
    largest = margin - np.partition(pairs, place - 1, axis=-1)[:, place - 1]
    return float((largest > 0).mean()), float(np.quantile(largest, FOUND))
