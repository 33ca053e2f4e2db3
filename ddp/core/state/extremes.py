"""The slowest ranks, the last ranks to report, and the ranks' parts of the rest, cached so that not every event has to
look at all ranks.

Owns these values. `ddp.core.grants.allowance`, `pacing` and `ending` know when they are valid."""

from __future__ import annotations

import math

from ddp.core.values.frozen import replace, value
from ddp.core.values.persistent import NOBODY, RankSet, Row


@value(frozen=True)
class Slowest:
    """The slowest of the ranks with work, for plans that bound how far other ranks may be ahead of them."""

    steps: int | None = None
    """Their steps in the window; None: to be searched among all ranks."""
    ranks: RankSet = NOBODY
    """Ranks with that number of steps."""
    touched: RankSet = NOBODY
    """Ranks whose state changed since."""
    barred: RankSet = NOBODY
    """Ranks that may be granted more once the slowest make progress."""

    def unknown(self) -> Slowest:
        """Return a value that says that the slowest must be searched."""
        return replace(self, steps=None, ranks=NOBODY)


SOMEBODY = Slowest()


@value(frozen=True)
class EndParts:
    """The steps left of the last epoch, divided among all ranks so that they end together."""

    of: Row[int]
    """By rank: steps of its part that are not granted yet."""
    left: int
    """Their sum."""
    live: int
    """Number of live ranks among which they were divided."""
    uses: int
    """Number of decisions that may still use this division, before the ranks' progress asks for another."""
    done: RankSet = NOBODY
    """Ranks that have their whole part. They are no `takers`."""


@value(frozen=True)
class Recent:
    """Ranks that reported work at the latest time, and the range of the samples-seen counts that they train with."""

    at: float = 0.0
    rank: int = -1
    """The last rank to report."""
    ranks: RankSet = NOBODY
    low: float = math.inf
    high: float = -math.inf


NOT_YET = Recent()
