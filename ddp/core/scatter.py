"""How far a rank strays from the others by chance, and from where on it is no chance. Pure.

Each figure is the logarithm of so many times as long as the others. Neighbours are alike on a busy machine. Knows nothing of
what the figures are of.
"""

from __future__ import annotations

import math
from statistics import NormalDist

BY_CHANCE = 1e-5
"""Part of the rows that chance alone may take beyond the bound."""
PRIOR, PRIOR_SCATTER = 16, 0.05
"""Before any is known: as if so many figures had strayed by 5 %, as on a quiet machine."""
ALIKE = 3
"""So many neighbours tell as much as one: of a first-order autoregression of 0.5, as measured on a busy machine."""
_Z = NormalDist().inv_cdf(1 - BY_CHANCE)


class Scatter:
    """What is known of the figures of one rank. Those below 0 tell of the others."""

    def __init__(self) -> None:
        self._count, self._squares = 0, 0.0
        """Of figures in which nothing had changed."""
        self._last: list[float] = []
        """Those after them: something may have."""

    def enter(self, figure: float, row: int) -> bool:
        """Take note of a figure, the `row`-th in a row that may have changed (0: it has not). Return whether that is no
        chance. What was over before that was clear was chance; but a change may begin within the last figure."""
        self._last.append(max(figure, 0.0))
        if row:
            return sum(self._last[-row:]) >= row * self._bound(row)
        *chance, last = self._last
        self._count, self._squares = self._count + len(chance), self._squares + sum(each**2 for each in chance)
        self._last = [last]
        return False

    def forget(self) -> None:
        """Forget the row, which was no chance."""
        self._last = []

    def _bound(self, row: int) -> float:
        """Return what the mean of a `row` of figures does not reach by chance: a quantile of Student's distribution (by
        Wallace, 1959)."""
        known = PRIOR + self._count
        variance = (PRIOR * PRIOR_SCATTER**2 + 2 * self._squares) / known  # of both sides
        quantile = math.sqrt(known * math.expm1(_Z**2 / known))
        return quantile * math.sqrt(variance * (1 / max(row / ALIKE, 1.0) + 1 / known))
