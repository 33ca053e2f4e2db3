"""How far a rank's figures stray from the others' by chance, and a bound beyond which it is not chance. Pure.

Each figure is the logarithm of a ratio to the other ranks. Consecutive figures are correlated on a busy machine. Does not
know what the figures measure."""

from __future__ import annotations

import math
from statistics import NormalDist

BY_CHANCE = 1e-5
"""Accepted fraction of rows that exceed the bound by chance."""
PRIOR, PRIOR_SCATTER = 16, 0.05
"""Prior: number of pseudo-observations and their scatter, 5 % as on a quiet machine."""
ALIKE = 3
"""Number of consecutive figures that are worth one independent figure: for a first-order autoregression of 0.5, as measured
on a busy machine."""
_Z = NormalDist().inv_cdf(1 - BY_CHANCE)


class Scatter:
    """The scatter of one rank's figures. Figures below 0 say something about other ranks, and count as 0."""

    def __init__(self) -> None:
        self._count, self._squares = 0, 0.0
        """Number and sum of squares of the figures without a change."""
        self._last: list[float] = []
        """Later figures, in which something may have changed."""

    def enter(self, figure: float, row: int) -> bool:
        """Add a figure: number `row` of consecutive figures that may show a change (0: none). Return whether the row is not
        chance. Rows that ended before that was clear count as chance; but a change may have begun with the last figure."""
        self._last.append(max(figure, 0.0))
        if row:
            return sum(self._last[-row:]) >= row * self._bound(row)
        *chance, last = self._last
        self._count, self._squares = self._count + len(chance), self._squares + sum(each**2 for each in chance)
        self._last = [last]
        return False

    def forget(self) -> None:
        """Discard the figures of a row that was not chance."""
        self._last = []

    def _bound(self, row: int) -> float:
        """Return a bound that the mean of `row` figures exceeds only with probability BY_CHANCE: a quantile of Student's t
        distribution (approximation by Wallace, 1959)."""
        known = PRIOR + self._count
        variance = (PRIOR * PRIOR_SCATTER**2 + 2 * self._squares) / known  # figures are cut at 0: count both sides
        quantile = math.sqrt(known * math.expm1(_Z**2 / known))
        return quantile * math.sqrt(variance * (1 / max(row / ALIKE, 1.0) + 1 / known))
