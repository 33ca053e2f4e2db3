"""How far a figure strays by chance, and from where on it is none. Pure.

Each figure is the logarithm of a ratio that is 0 as long as nothing has changed. Neighbours are alike on a busy machine, so
several in a row tell less than their number. Knows nothing of what the figures are of.
"""

from __future__ import annotations

import math
from statistics import NormalDist

BY_CHANCE = 1e-5
"""Part of the rows that chance alone may take beyond the bound."""
PRIOR, PRIOR_SCATTER = 8, 0.05
"""Before any is known: as if so many figures had strayed by 5 %, as on a quiet machine."""
_Z = NormalDist().inv_cdf(1 - BY_CHANCE)


class Scatter:
    """What is known of the figures of one rank."""

    def __init__(self) -> None:
        self._count, self._sum, self._squares, self._products = 0, 0.0, 0.0, 0.0
        """Of figures that had not changed: sums of them, of their squares, of products of neighbours."""
        self._last = 0.0
        self._row: list[float] = []
        """Figures that may have."""

    def enter(self, figure: float, row: int) -> bool:
        """Take note of a figure, the `row`-th in a row that may have changed (0: it has not). Return whether that is no
        chance. What was over before that was clear was chance."""
        self._row.append(figure)
        if row:
            return sum(self._row) >= self._bound(len(self._row)) * len(self._row)
        for each in self._row:
            self._count, self._sum = self._count + 1, self._sum + each
            self._squares, self._products = self._squares + each**2, self._products + each * self._last
            self._last = each
        self._row.clear()
        return False

    def forget(self) -> None:
        """Forget the row, which was no chance."""
        self._row.clear()

    def _bound(self, row: int) -> float:
        """Return what the mean of a `row` of figures does not reach by chance: a quantile of Student's distribution (by
        Wallace, 1959) for figures of a first-order autoregression."""
        known, mean = PRIOR + self._count, self._sum / max(self._count, 1)
        squares = PRIOR * PRIOR_SCATTER**2 + self._squares - self._count * mean**2
        alike = min(max((self._products - self._count * mean**2) / squares, 0.0), 0.99)
        independent = max(row * (1 - alike) / (1 + alike), 1.0)
        quantile = math.sqrt(known * math.expm1(_Z**2 / known))
        return max(mean, 0.0) + quantile * math.sqrt(squares / known * (1 / independent + 1 / known))
