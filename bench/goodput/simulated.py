"""The seconds of simulated ranks by part, computed as for real runs. Plays nothing."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from bench.results.analysis.histories import Histories
from bench.results.analysis.rank_seconds import Away, rank_seconds
from bench.results.analysis.stream import Slices
from ddp.core.messages.commands import Drop, Join, Leave, Plan, Restart, SendState
from ddp.core.messages.events import AverageFailed, Finished, Merged, Progress, Ready
from ddp.core.messages.join_events import Joined, Joining

KINDS = ("forward", "exchange", "copy", "join", "wait", "evaluate", "checkpoint")


class SimulatedTimes:
    """Collects slices (`measured`) and records (`listen`) of a `Simulation`, as columns, because there are millions."""

    def __init__(self, size: int) -> None:
        self.histories = Histories(size, 0.0)
        self._ranks, self._kinds, self._seqs = array("i"), array("b"), array("q")
        self._starts, self._stops = array("d"), array("d")

    def measured(self, rank: int, kind: str, start: float, stop: float, seq: int) -> None:
        """Add a slice."""
        self._ranks.append(rank)
        self._kinds.append(KINDS.index(kind))
        self._starts.append(start)
        self._stops.append(stop)
        self._seqs.append(seq)

    def listen(self, at: float, record: Any) -> None:
        """Add a record."""
        if isinstance(record, Progress | Merged | Ready | Finished | AverageFailed):
            self.histories.tell(record)
        elif isinstance(record, Drop | Restart | Joining | Joined | Join | Leave | SendState):
            self.histories.move(at, record)
        elif isinstance(record, Plan):
            self.histories.in_step = record.in_step

    def slices(self) -> Slices:
        """Return the slices so far."""
        starts, stops = np.array(self._starts, np.float64), np.array(self._stops, np.float64)
        names = np.array(KINDS, np.str_)[np.array(self._kinds, np.int64)]
        ranks, seqs = np.array(self._ranks, np.int64), np.array(self._seqs, np.int64)
        return Slices(ranks, names, starts, stops, seqs, np.zeros(ranks.size, np.int64))

    def seconds(self, end: float, away: Away = ()) -> dict[str, float]:
        """Return the seconds of all ranks by part, as `rank_seconds` does, from virtual time 0 to `end`."""
        self.histories.end = end
        return rank_seconds(self.slices(), self.histories, away)
