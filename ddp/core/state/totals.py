"""The number of live ranks in each condition, such as those that have work.

Owns how one rank counts. Knows no round and no plan."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat

from ddp.core.state.rank_state import RankState
from ddp.core.values.frozen import value

LANE = 40
"""Bits per count in `Totals`."""
UNREADY, UNFINISHED, ORDERED, TRAINED, WORKING, SHORT, IDLE, BEHIND, OWED = PLACES = range(0, 9 * LANE, LANE)
"""The lowest bit of each count."""
LARGEST = (1 << LANE) - 1
"""The largest count."""
ONE_UNREADY, ONE_UNFINISHED, ONE_ORDERED, ONE_TRAINED, ONE_WORKING, ONE_SHORT, ONE_IDLE, ONE_BEHIND, ONE_OWED = (
    1 << place for place in PLACES
)
"""The value of 1 in each count."""


@value(frozen=True)
class Totals:
    """Number of live ranks in each condition: all counts in one integer, as every event changes some of them."""

    bits: int = 0

    @property
    def unready(self) -> int:
        """Ranks that are not ready yet."""
        return self.bits >> UNREADY & LARGEST

    @property
    def unfinished(self) -> int:
        """Ranks that have not finished."""
        return self.bits >> UNFINISHED & LARGEST

    @property
    def ordered(self) -> int:
        """Ranks with work to do before an order to average."""
        return self.bits >> ORDERED & LARGEST

    @property
    def trained(self) -> int:
        """Ranks with steps since their last contribution."""
        return self.bits >> TRAINED & LARGEST

    @property
    def working(self) -> int:
        """Ranks with work to do."""
        return self.bits >> WORKING & LARGEST

    @property
    def short(self) -> int:
        """Ranks with work to do that have not done their steps of the window."""
        return self.bits >> SHORT & LARGEST

    @property
    def idle(self) -> int:
        """Ranks without work that have steps in the window."""
        return self.bits >> IDLE & LARGEST

    @property
    def behind(self) -> int:
        """Ranks that have not reached their milestone."""
        return self.bits >> BEHIND & LARGEST

    @property
    def owed(self) -> int:
        """Number of owed parts of evaluations."""
        return self.bits >> OWED & LARGEST


NONE = Totals()


def count(state: RankState, part: int, milestone: int) -> int:
    """Return a rank's contribution to `Totals`; `part`: its steps in the window."""
    if not state.alive:
        return 0
    steps = state.steps
    bits = 0 if state.finished else ONE_UNFINISHED
    if not state.digest:
        bits += ONE_UNREADY
    if state.before > 0:
        bits += ONE_ORDERED
    if steps > 0:
        bits += ONE_TRAINED
    if state.queue:
        bits += ONE_WORKING + ONE_SHORT if steps < part else ONE_WORKING
    elif part > 0:
        bits += ONE_IDLE
    if steps < milestone:
        bits += ONE_BEHIND
    return bits + ONE_OWED * len(state.owed) if state.owed else bits


def counted(ranks: Iterable[RankState], window: tuple[int, ...], milestones: tuple[int, ...]) -> Totals:
    """Return the totals of all ranks, counted anew, in a window with its milestones (empty: no window)."""
    nothing = repeat(0)
    return Totals(sum(map(count, ranks, window or nothing, milestones or nothing)))
