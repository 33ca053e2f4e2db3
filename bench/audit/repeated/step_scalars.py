"""What a repeated step records with `record_scalar`, summed by other code than the run's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ddp.replica.scalars import Scalars

Totals = dict[str, tuple[float, int]]
"""Name -> (sum, number of calls; or of samples, if a sum over samples is recorded)."""


def both(some: Totals, more: Totals) -> Totals:
    """Return the totals of some steps and of later ones together."""
    none = (0.0, 0)
    pairs = ((name, some.get(name, none), more.get(name, none)) for name in {**some, **more})
    return {name: (first[0] + then[0], first[1] + then[1]) for name, first, then in pairs}


class Collected(Scalars):
    """Context that adds what passes of a step record to `totals`."""

    def __init__(self, totals: Totals) -> None:
        super().__init__()
        self._totals = totals

    def add(self, name: str, value: Any) -> None:
        """Add one value."""
        self._more(name, float(value.detach() if isinstance(value, Tensor) else value), 1)

    def add_later(self, name: str, count: int, total: Callable[..., Tensor], tensors: tuple[Tensor, ...]) -> None:
        """Add a sum over samples immediately."""
        self._more(name, float(total(*(tensor.detach() for tensor in tensors))), count)

    def _more(self, name: str, value: float, calls: int) -> None:
        known, before = self._totals.get(name, (0.0, 0))
        self._totals[name] = known + value, before + calls
