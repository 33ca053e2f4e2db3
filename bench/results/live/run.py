"""The figures of a run so far, folded from its records one by one. Pure.

A command has the time of the event before it. Times are seconds on the clock of the records, unless named otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ddp.core.anomalies.slowness import SlowFold
from ddp.core.figures.summary import EpochFigures, EpochFold
from ddp.core.messages.commands import Abort, Drop, Join, Leave, Plan
from ddp.core.messages.events import AverageFailed, Failed, Finished, Lost, Memory, Progress, Ready, Resumed, Slice
from ddp.core.messages.join_events import Joined, Joining
from ddp.process.codec import Record

Trouble = Failed | Lost | AverageFailed | Drop | Abort | Leave | Join | Joined | Resumed


@dataclass
class RankFigures:
    """The figures of one rank so far."""

    ready: Ready | None = None
    joining: Joining | None = None
    """The last `Joining` of a rank that has joined."""
    reported: float = 0.0
    """Time of its last report of training."""
    epoch: int = -1
    steps: int = 0
    samples: int = 0
    earlier: int = 0
    """Those of `samples` that come from before the resumption."""
    busy_s: float = 0.0
    """Without the time before the resumption."""
    used: float | None = None
    """Time of the last measurement of memory and processor; and processor seconds up to then."""
    cpu_s: float = 0.0
    rss_bytes: int = 0
    """The last value; and the peak."""
    peak_rss_bytes: int = 0
    finished: bool = False
    lost: float | None = None
    """When the loss was noticed after which the run went on without it. Its later reports are ignored."""


class RunFigures:
    """The figures of a run so far."""

    def __init__(self, planned: int = 0, heard: float = 0.0) -> None:
        """Create an empty fold. `planned`: epochs of the run, 0 if not known; `heard`: time before the first record."""
        self.first: float | None = None
        """Time of the first record, the launch; and of the latest one."""
        self.now = 0.0
        self.heard = heard
        """Time of the last event. Measurements of ranks do not count as events."""
        self.began: float | None = None
        """When the last rank became ready, or the run was resumed if that was later."""
        self.steps = self.samples = 0
        self.before = 0
        """Those of `samples` that come from before the resumption."""
        self.ranks: dict[int, RankFigures] = {}
        self.epochs = EpochFold(planned)
        self.complete = 0
        """Number of epochs returned as complete."""
        self.plan: Plan | None = None
        self.aborted: Abort | None = None
        self.resumed: Resumed | None = None
        self.slow = SlowFold()
        """Ranks that became slow."""
        self._arrived: dict[int, Joining] = {}
        """Ranks that are ready to join."""
        self._noticed: dict[int, float] = {}
        """Rank -> when it raised, or its loss was noticed."""

    def add(self, record: Record) -> list[EpochFigures]:
        """Add a record; return the epochs that it completes."""
        at = getattr(record, "at", self.heard)
        self.first = at if self.first is None else self.first
        self.now = max(at, self.now)
        if not isinstance(record, Memory | Slice):
            self.advance(at)
        match record:
            case Progress() if (rank := self._rank(record.rank)).lost is None:
                rank.reported, rank.epoch = at, record.epoch
                rank.busy_s += record.busy_s
                for totals in (self, rank):
                    totals.steps += record.steps
                    totals.samples += record.samples
            case Ready():
                rank = self._rank(record.rank)
                rank.ready, rank.reported, self.began = record, at, max(at, self.began or at)
            case Memory():
                rank = self._rank(record.rank)
                rank.used, rank.rss_bytes = at, record.rss_bytes
                rank.peak_rss_bytes = max(rank.peak_rss_bytes, record.rss_bytes)
                rank.cpu_s = rank.cpu_s if record.cpu_s is None else record.cpu_s
            case Finished():
                rank = self._rank(record.rank)
                rank.finished, rank.peak_rss_bytes = True, max(rank.peak_rss_bytes, record.peak_rss_bytes)
            case Plan():
                self.plan = record
            case Failed() | Lost():
                self._noticed.setdefault(record.rank, at)
            case Drop():
                self._rank(record.rank).lost = self._noticed.get(record.rank, at)
            case Joining() | Joined():
                self._join(record)
            case Abort():
                self.aborted = record
            case Resumed():
                self._go_on(record)
        self.slow.add(record)
        complete = self.epochs.add(record)
        self.complete += len(complete)
        return complete

    def advance(self, at: float) -> None:
        """Note the time of an event that is needed for nothing else."""
        self.heard = at

    def since(self, at: float) -> float:
        """Return the seconds from launch to `at`."""
        return max(at - (at if self.first is None else self.first), 0.0)

    @property
    def counted(self) -> bool:
        """Whether its samples are known: a loop of one's own that does not tell them reports no steps."""
        return self.steps > 0 or self.samples == 0

    @property
    def startup(self) -> float:
        """Seconds from launch, or from when the run was resumed, until the last rank was ready."""
        launched = self.first if self.resumed is None else self.resumed.at
        return 0.0 if self.began is None or launched is None else self.began - launched

    @property
    def rate(self) -> float | None:
        """Samples per second so far, including evaluation; None: not known yet."""
        seconds = self.now - self.began if self.began is not None else 0.0
        return (self.samples - self.before) / seconds if seconds > 0 and self.samples > self.before else None

    def time_left(self, epochs: int) -> float | None:
        """Return the seconds until all epochs are trained, at the speed so far; None: not known yet."""
        if self.rate is None or not self.epoch_samples or not epochs:
            return None
        return max(epochs * self.epoch_samples - self.trained, 0) / self.rate

    @property
    def ready(self) -> list[Ready]:
        """The `Ready` events, by rank."""
        return [rank.ready for _, rank in sorted(self.ranks.items()) if rank.ready is not None]

    @property
    def epoch_samples(self) -> int:
        """Samples of an epoch; 0: not known."""
        return next((event.samples for event in self.ready), 0)

    @property
    def trained(self) -> int:
        """Samples of all epochs, each counted at most once: samples that a lost rank discards are trained again by
        others."""
        current = [min(epoch.samples, self.epoch_samples) for epoch in self.epochs.current()]
        return self.complete * self.epoch_samples + sum(current)

    @property
    def lost(self) -> list[int]:
        """Ranks that the run goes on without."""
        return sorted(number for number, rank in self.ranks.items() if rank.lost is not None)

    def _rank(self, number: int) -> RankFigures:
        return self.ranks.setdefault(number, RankFigures(reported=self.now))

    def _join(self, record: Joining | Joined) -> None:
        """Note that a rank is ready to join, or has joined."""
        if isinstance(record, Joining):
            self._arrived[record.rank] = record
            return
        rank = self._rank(record.rank)
        rank.lost, rank.reported, rank.joining = None, record.at, self._arrived.pop(record.rank, None)
        self._noticed.pop(record.rank, None)

    def _go_on(self, record: Resumed) -> None:
        self.resumed, self.began, self.before = record, record.at, self.samples
        self._noticed = {}
        for number, rank in self.ranks.items():
            self.ranks[number] = replace(rank, lost=None, finished=False, busy_s=0.0, earlier=rank.samples)


def is_change(plan: Plan, before: Plan | None) -> bool:
    """Return whether a plan differs from the one before in anchor, counts or phase."""
    return before is None or (plan.anchor, plan.counts, plan.phase) != (before.anchor, before.counts, before.phase)
