"""When runs reached their target. A run that never did counts as infinitely long, and is never left out. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from statistics import median
from typing import Literal

from bench.results.cells import Cell

Axis = Literal["samples", "seconds"]


@dataclass(frozen=True)
class Reach:
    """Cost of each seed of a cell to reach the target (`Cell.counted`); infinity: missed; nan: not measured."""

    cell: Cell
    samples: tuple[float, ...]
    seconds: tuple[float, ...]

    @property
    def n(self) -> int:
        """Number of seeds, except those whose runs were interrupted."""
        return len(self.samples)

    @property
    def reached(self) -> int:
        """Number of seeds that reached the target."""
        return sum(math.isfinite(value) for value in self.samples)

    def middle(self, axis: Axis) -> float | None:
        """Return the median, with misses at infinity; None if no run was measured."""
        values = [value for value in getattr(self, axis) if not math.isnan(value)]
        return median(values) if values else None


def targets(cells: Iterable[Cell]) -> set[float | None]:
    """Return the targets that the runs of the cells were to reach. Times to several are not comparable."""
    return {run.metrics.target.value for cell in cells for run in cell.counted}


def all_reached(*cells: Cell) -> bool:
    """Return whether each seed of each cell reached the target, one and the same: only then are the costs compared."""
    return len(targets(cells)) == 1 and all(0 < side.n == side.reached for side in map(reach, cells))


def reach(cell: Cell) -> Reach:
    """Return the cost of each seed of a cell; a seed that failed or diverged before the target is a miss. Predicted runs,
    which train nothing, take no part."""
    runs = [m for run in cell.counted if (m := run.metrics).status != "killed" and m.source != "predicted"]
    samples, seconds = (
        tuple(math.inf if not m.target.reached or value(m.target) is None else float(value(m.target)) for m in runs)
        for value in (attrgetter("samples"), attrgetter("seconds"))
    )
    timed = tuple(value if m.timing else math.nan for m, value in zip(runs, seconds, strict=True))
    return Reach(cell, samples, timed)
