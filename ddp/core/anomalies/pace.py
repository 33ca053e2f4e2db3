"""How long a rank's samples take in a window, by cause. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from statistics import median

LEAST_PACE = 1e-9
"""Seconds per sample below which nothing is measured."""


@dataclass(frozen=True)
class WorkPace:
    """Seconds per sample in a window, by cause."""

    compute: float
    data: float
    host: float
    """Seconds without a core, which are in none of the other two."""
    began: float
    core: float = 0.0
    """Processor seconds of a fixed piece of work in this window (not by sample); 0: not measured."""
    batch: float = 1.0
    """Samples per step."""

    @property
    def own(self) -> float:
        """Return what the rank's own work takes."""
        return self.compute + self.data

    @property
    def whole(self) -> float:
        """Return what its samples take, with the time without a core."""
        return self.own + self.host

    def as_batches_of(self, batch: float) -> WorkPace:
        """Return the pace with smaller batches counted as such: their steps need not be shorter."""
        less = self.batch / batch
        if less >= 1.0:
            return self
        return replace(self, compute=self.compute * less, data=self.data * less, host=self.host * less, batch=batch)


_PARTS = attrgetter(*(each.name for each in fields(WorkPace)))
NOTHING = WorkPace(0.0, 0.0, 0.0, 0.0)


def median_of(paces: Iterable[WorkPace]) -> WorkPace:
    """Return the median of each cause. `batch` becomes the one by which samples and steps take their medians."""
    paces = list(paces)
    middle = WorkPace(*map(median, zip(*map(_PARTS, paces), strict=True)))
    step_s, sample_s = median(each.whole * each.batch for each in paces), median(each.whole for each in paces)
    return replace(middle, batch=step_s / sample_s) if sample_s else middle


def grown(compute: float, batch: float, usual: WorkPace) -> float:
    """Return how many times as long as usual samples or steps compute, whichever is nearer to 1."""
    by_sample = compute / max(usual.compute, LEAST_PACE)
    return median((by_sample, by_sample * batch / usual.batch, 1.0))
