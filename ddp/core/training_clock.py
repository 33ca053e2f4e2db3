"""The clock that measures training: it stands still while ranks evaluate. Pure: times come in from outside."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import itemgetter


@dataclass(frozen=True)
class TrainingClock:
    """The training clock of a run: it starts when the last rank is ready and stands still for evaluation.

    Ranks that evaluate at different moments stop it by their mean: it is the wall time less the evaluation seconds of the
    average rank.
    """

    begun: float
    ranks: int
    evaluations: Sequence[tuple[float, float]]
    """(end, seconds) of each."""
    stopped: float = 0.0
    """Seconds of earlier evaluations, which are over, all ranks together."""

    def at(self, time: float) -> float:
        """Return the seconds of training until `time` (on the clock of the events)."""
        return max(time - self.begun - self._stopped(time) / self.ranks, 0.0)

    def _stopped(self, time: float) -> float:
        """Return the seconds of evaluation until `time`, all ranks together: of those over, and of those under way."""
        events, ends, sums, longest = self._over
        over, until = bisect_right(ends, time), bisect_right(ends, time + longest)
        begun = (time - (end - seconds) for end, seconds in events[over:until])
        return sums[over] + sum(seconds for seconds in begun if seconds > 0)

    @cached_property
    def _over(self) -> tuple[list[tuple[float, float]], list[float], list[float], float]:
        """Return the evaluations by their ends, these, the seconds of the first 0, 1, 2, ... of them, and the longest: so a
        moment is found without a look at all of them."""
        events = sorted(self.evaluations, key=itemgetter(0))
        lengths = [seconds for _, seconds in events]
        sums = list(accumulate(lengths, initial=self.stopped))
        return events, [end for end, _ in events], sums, max(lengths, default=0.0)
