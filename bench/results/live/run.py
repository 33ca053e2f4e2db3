"""The figures of a run so far, from its records one by one. Pure.

A command bears the time of the event before it. Times are seconds on the clock of the records, but where they are named
otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ddp.core.commands import Abort, Drop, Join, Plan
from ddp.core.events import AverageFailed, Failed, Finished, Lost, Memory, Progress, Ready, Resumed, Slice
from ddp.core.join_events import Joined
from ddp.core.slowness import SlowFold
from ddp.core.summary import EpochFigures, EpochFold
from ddp.process.codec import Record

Trouble = Failed | Lost | AverageFailed | Drop | Abort | Join | Joined | Resumed


@dataclass
class RankFigures:
    """One rank so far."""

    ready: Ready | None = None
    reported: float = 0.0
    """Its last report of training."""
    epoch: int = -1
    steps: int = 0
    samples: int = 0
    earlier: int = 0
    """Of `samples`, those that the run was resumed with."""
    busy_s: float = 0.0
    """Without what the run was resumed with."""
    used: float | None = None
    """When memory and processor were measured last; and the processor seconds by then."""
    cpu_s: float = 0.0
    rss_bytes: int = 0
    """At last; and the most there was."""
    peak_rss_bytes: int = 0
    finished: bool = False
    lost: float | None = None
    """When it was noticed that the run would go on without it. What it says after that is not heard."""


class RunFigures:
    """A run so far."""

    def __init__(self, planned: int = 0, heard: float = 0.0) -> None:
        """Begin. `planned`: epochs of the run; 0: not known. `heard`: the time before the first record."""
        self.first: float | None = None
        """The first record, the launch; and the latest one."""
        self.now = 0.0
        self.heard = heard
        """The event before: what ranks measure of themselves is none."""
        self.began: float | None = None
        """When the last rank was ready, or the run was resumed if that was later."""
        self.steps = self.samples = 0
        self.before = 0
        """Of `samples`, those that the run was resumed with."""
        self.ranks: dict[int, RankFigures] = {}
        self.epochs = EpochFold(planned)
        self.complete = 0
        """Epochs that were given out."""
        self.plan: Plan | None = None
        self.aborted: Abort | None = None
        self.resumed: Resumed | None = None
        self.slow = SlowFold()
        """Ranks that became slow."""
        self._noticed: dict[int, float] = {}
        """Rank -> when it raised or was gone."""

    def add(self, record: Record) -> list[EpochFigures]:
        """Take note of a record; return the epochs that are complete with it."""
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
            case Joined():
                rank = self._rank(record.rank)
                rank.lost, rank.reported = None, at
                self._noticed.pop(record.rank, None)
            case Abort():
                self.aborted = record
            case Resumed():
                self._go_on(record)
        self.slow.add(record)
        complete = self.epochs.add(record)
        self.complete += len(complete)
        return complete

    def advance(self, at: float) -> None:
        """Take note of the time of an event of which nothing else is needed."""
        self.heard = at

    def since(self, at: float) -> float:
        """Return the seconds from launch to `at`."""
        return max(at - (at if self.first is None else self.first), 0.0)

    @property
    def startup(self) -> float:
        """Seconds from launch, or from when the run was resumed, until the last rank was ready."""
        launched = self.first if self.resumed is None else self.resumed.at
        return 0.0 if self.began is None or launched is None else self.began - launched

    @property
    def rate(self) -> float | None:
        """Samples per second so far, evaluation included; None: nothing is known yet."""
        seconds = self.now - self.began if self.began is not None else 0.0
        return (self.samples - self.before) / seconds if seconds > 0 and self.samples > self.before else None

    def time_left(self, epochs: int) -> float | None:
        """Return the seconds until the last sample of all epochs, at the speed so far; None: not known yet."""
        if self.rate is None or not self.epoch_samples or not epochs:
            return None
        return max(epochs * self.epoch_samples - self.trained, 0) / self.rate

    @property
    def ready(self) -> list[Ready]:
        """What ranks said when they were ready, by rank."""
        return [rank.ready for _, rank in sorted(self.ranks.items()) if rank.ready is not None]

    @property
    def epoch_samples(self) -> int:
        """Samples of an epoch; 0: not known."""
        return next((event.samples for event in self.ready), 0)

    @property
    def trained(self) -> int:
        """Samples of the epochs, of each as many as it has: what a lost rank throws away others train again."""
        current = [min(epoch.samples, self.epoch_samples) for epoch in self.epochs.current()]
        return self.complete * self.epoch_samples + sum(current)

    @property
    def lost(self) -> list[int]:
        """Ranks that the run goes on without."""
        return sorted(number for number, rank in self.ranks.items() if rank.lost is not None)

    def _rank(self, number: int) -> RankFigures:
        return self.ranks.setdefault(number, RankFigures(reported=self.now))

    def _go_on(self, record: Resumed) -> None:
        self.resumed, self.began, self.before = record, record.at, self.samples
        self._noticed = {}
        for number, rank in self.ranks.items():
            self.ranks[number] = replace(rank, lost=None, finished=False, busy_s=0.0, earlier=rank.samples)


def is_change(plan: Plan, before: Plan | None) -> bool:
    """Return whether a plan is another schedule than the one before."""
    return before is None or (plan.anchor, plan.counts, plan.phase) != (before.anchor, before.counts, before.phase)
