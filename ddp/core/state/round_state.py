"""A round in flight as the coordinator sees it: its members, awaited ranks and answers. Decides nothing."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum

from ddp.core.messages.events import Averaged, AverageFailed, Reduced, Shared, Snapshot
from ddp.core.messages.join_events import Joined
from ddp.core.state.rank_state import RankState
from ddp.core.values.frozen import value
from ddp.core.values.persistent import NOBODY, Log, RankSet


class Phase(StrEnum):
    """Phase of a round. IDLE: no round is in flight."""

    IDLE = "idle"
    COLLECTIVE = "collective"
    SNAPSHOTS = "snapshots"
    REDUCE = "reduce"
    APPLY = "apply"
    SEND_STATE = "send state"
    LOAD_STATE = "load state"


@value(frozen=True)
class Round:
    """One averaging of replicas, from the order to the last acknowledgement."""

    index: int
    members: RankSet
    phase: Phase
    waiting: RankSet
    """Ranks that owe an answer in this phase."""
    closes: tuple[int, ...]
    """Epochs that end with this round."""
    contributions: Log[RankState] = field(default_factory=Log)
    """States of ranks at the time when their training entered the average."""
    reduce_s: float = 0.0
    """Seconds of averaging the snapshots."""
    answers: Log[Averaged] = field(default_factory=Log)
    """Answers of the ranks that have the average."""
    starved: tuple[int, ...] = ()
    """Ranks that were short of work when the round opened."""
    failed: tuple[int, ...] = ()
    """Ranks on which the collective broke: they lack its result."""
    joining: RankSet = NOBODY
    """Restarted ranks that are sent a state; then the round averages nothing."""
    since: float = 0.0
    """When this phase began."""

    @property
    def gathering(self) -> RankSet:
        """Ranks that still have to enter the collective, or to copy their replicas."""
        return self.waiting if self.phase in (Phase.COLLECTIVE, Phase.SNAPSHOTS) else NOBODY

    def gathers(self, rank: int) -> bool:
        """Return whether `rank` still has to enter the collective, or to copy its replica."""
        return rank in self.gathering

    def expects(self, event: Snapshot | Reduced | Averaged | AverageFailed | Shared | Joined) -> bool:
        """Return whether `event` is an awaited answer of this round."""
        return event.round == self.index and (isinstance(event, Reduced) or event.rank in self.waiting)
