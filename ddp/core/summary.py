"""From events to the figures of an epoch: means over samples and calls, and the clock that stands still for evaluation.

What a live run tells its user and what is written about it later are computed here, once.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from ddp.core.events import Evaluated, Progress

Scalars = dict[str, float | None]
"""Name -> mean over the calls; None: not finite."""


@dataclass(frozen=True)
class TrainingClock:
    """The training clock of a run: it starts when the last rank is ready and stands still for evaluation.

    Ranks that evaluate at different moments stop it by their mean: it is the wall time less the evaluation seconds of the
    average rank.
    """

    begun: float
    ranks: int
    evaluations: Sequence[Evaluated]

    def at(self, time: float) -> float:
        """Seconds of training until `time` (on the clock of the events)."""
        return max(time - self.begun - self._stopped(time) / self.ranks, 0.0)

    def _stopped(self, time: float) -> float:
        """Seconds of evaluation until `time`, all ranks together: of those that are over, and of those under way."""
        events, ends, sums, longest = self._over
        over = bisect_right(ends, time)
        until = bisect_right(ends, time + longest)
        begun = (time - (e.at - e.seconds) for e in events[over:until])
        return sums[over] + sum(seconds for seconds in begun if seconds > 0)

    @cached_property
    def _over(self) -> tuple[list[Evaluated], list[float], list[float], float]:
        """Evaluations by their ends, these, the seconds of the first 0, 1, 2, ... of them, and the longest: so a moment is
        told without a look at all of them."""
        events = sorted(self.evaluations, key=lambda event: event.at)
        sums = list(accumulate((event.seconds for event in events), initial=0.0))
        return events, [event.at for event in events], sums, max((event.seconds for event in events), default=0.0)


def ended(trained: Sequence[Progress], parts: Sequence[Evaluated]) -> float:
    """When the training of an epoch ended: when its evaluation first began, or with the last report of it if that was later.

    Not when the last rank began to evaluate: where others train on meanwhile, that may be when the next epoch is over."""
    reported = max(event.at for event in trained)
    return max(min((part.at - part.seconds for part in parts), default=reported), reported)


def mean_loss(trained: Sequence[Progress]) -> float | None:
    """Mean training loss over samples; None if it is not finite, or nothing was trained."""
    return _ratio(_total(event.loss_sum for event in trained), sum(event.samples for event in trained))


def evaluation(parts: Sequence[Evaluated]) -> tuple[float | None, float | None]:
    """(mean loss, mean metric) over the test set; None where not finite, or nothing was evaluated."""
    size = sum(part.samples for part in parts)
    return _ratio(_total(part.loss_sum for part in parts), size), _ratio(
        _total(part.metric_sum for part in parts), size
    )


def scalar_means(trained: Iterable[Progress]) -> Scalars:
    """Mean of each recorded scalar over all calls, whichever rank made them, by name in alphabetical order."""
    sums: dict[str, list[float | None]] = defaultdict(list)
    calls: dict[str, int] = defaultdict(int)
    for event in trained:
        for name, value, count in event.scalars:
            sums[name].append(value)
            calls[name] += count
    return {name: _ratio(_total(sums[name]), calls[name]) for name in sorted(sums)}


def scalars_by_rank(trained: Sequence[Progress], ranks: int) -> tuple[Scalars, ...]:
    """The same for each rank alone; empty where a rank recorded nothing."""
    by_rank: list[list[Progress]] = [[] for _ in range(ranks)]
    for event in trained:
        by_rank[event.rank].append(event)
    return tuple(map(scalar_means, by_rank))


def _total(values: Iterable[float | None]) -> float | None:
    known = []
    for value in values:
        if value is None:
            return None
        known.append(value)
    try:
        return math.fsum(known)
    except OverflowError:
        return None


def _ratio(total: float | None, count: int) -> float | None:
    return None if total is None or not count else total / count
