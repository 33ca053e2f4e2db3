"""When runs reached their target. A run that never did counts as infinitely long, and is never left out. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import attrgetter
from statistics import median
from typing import Literal

from bench.results.cells import Cell

Axis = Literal["samples", "seconds"]


@dataclass(frozen=True)
class Reach:
    """What it took the seeds of a cell, one value for each (`Cell.counted`); infinity: never."""

    cell: Cell
    samples: tuple[float, ...]
    seconds: tuple[float, ...]

    @property
    def n(self) -> int:
        """Seeds that were given the chance: all but those whose runs somebody interrupted."""
        return len(self.samples)

    @property
    def reached(self) -> int:
        """Seeds that came there."""
        return sum(math.isfinite(value) for value in self.samples)

    def middle(self, axis: Axis) -> float | None:
        """Return the median, with misses at infinity; None if there is no run."""
        values: tuple[float, ...] = getattr(self, axis)
        return median(values) if values else None


def reach(cell: Cell) -> Reach:
    """Return what it took the seeds of a cell; one that failed or diverged before it was there is a miss."""
    targets = [run.metrics.target for run in cell.counted if run.metrics.status != "killed"]
    samples, seconds = (
        tuple(math.inf if not t.reached or value(t) is None else float(value(t)) for t in targets)
        for value in (attrgetter("samples"), attrgetter("seconds"))
    )
    return Reach(cell, samples, seconds)
