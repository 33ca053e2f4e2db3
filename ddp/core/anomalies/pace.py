"""How long a rank's samples take in a window, by cause. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median


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

    @property
    def own(self) -> float:
        """Return what the rank's own work takes."""
        return self.compute + self.data

    @property
    def whole(self) -> float:
        """Return what its samples take, with the time without a core."""
        return self.own + self.host


NOTHING = WorkPace(0.0, 0.0, 0.0, 0.0)


def median_of(paces: Iterable[WorkPace]) -> WorkPace:
    """Return the median of each cause."""
    columns = zip(*((each.compute, each.data, each.host, each.began, each.core) for each in paces), strict=True)
    return WorkPace(*(median(column) for column in columns))
