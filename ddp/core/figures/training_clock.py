"""The clock that measures training: it stops while ranks evaluate. Pure: times are arguments."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple


class Evaluation(NamedTuple):
    """A part of an evaluation, and the number of ranks at that time."""

    end: float
    seconds: float
    ranks: int


@dataclass(frozen=True)
class TrainingClock:
    """The training clock of a run: it starts when the last rank is ready and stops during evaluation.

    If ranks evaluate at different times, the mean over the ranks at that time counts: training time is the wall time minus
    the average rank's evaluation seconds."""

    begun: float
    evaluations: Sequence[Evaluation]
    stopped: Mapping[int, float] = field(default_factory=dict)
    """Number of ranks -> total seconds of earlier evaluations, over all ranks."""

    def at(self, time: float) -> float:
        """Return the seconds of training until `time` (on the clock of the events)."""
        return max(time - self.begun - self.evaluated(time), 0.0)

    def evaluated(self, time: float) -> float:
        """Return the evaluation seconds of the average rank until `time`, including evaluations in progress."""
        return sum(_until(time, *over) / ranks for ranks, over in self._over.items())

    @cached_property
    def _over(self) -> dict[int, tuple[list[Evaluation], list[float], list[float], float]]:
        """Return, by number of ranks: the evaluations sorted by end, their ends, cumulative sums of their seconds, and the
        longest. With these a time is looked up without visiting all evaluations."""
        groups: dict[int, list[Evaluation]] = defaultdict(list, {ranks: [] for ranks in self.stopped})
        for each in sorted(self.evaluations, key=itemgetter(0)):
            groups[each.ranks].append(each)
        groups_over = {}
        for ranks, events in groups.items():
            lengths = [each.seconds for each in events]
            sums = list(accumulate(lengths, initial=self.stopped.get(ranks, 0.0)))
            groups_over[ranks] = events, [each.end for each in events], sums, max(lengths, default=0.0)
        return groups_over


def _until(
    time: float, events: Sequence[Evaluation], ends: Sequence[float], sums: Sequence[float], longest: float
) -> float:
    over, until = bisect_right(ends, time), bisect_right(ends, time + longest)
    begun = (time - (each.end - each.seconds) for each in events[over:until])
    return sums[over] + sum(seconds for seconds in begun if seconds > 0)
