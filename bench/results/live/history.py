"""A run so far with its history, for the live page and the curves of loggers. Pure; never fails on a record.

Its size is bounded, as it thins out what grows with the run. Knows nothing of how it is shown.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple, TypeVar

from bench.results.live.run import RankFigures, RunFigures, Trouble, is_change
from bench.results.live.series import Series, TimeBin
from bench.results.schema import MOST_RANKS
from ddp.core.figures.summary import EpochFigures
from ddp.core.messages.commands import Abort, Drop, Join, Leave, Plan
from ddp.core.messages.events import AverageFailed, Failed, GuardVerdict, Lost, Memory, Progress, Resumed, RoundClosed
from ddp.core.messages.join_events import Joined
from ddp.core.messages.run_bounds import RunHeader
from ddp.process.codec import Record

POINTS = 400
"""Most kept points of epochs, plans and rounds, and most entries of a list."""
T = TypeVar("T")


class PlanInForce(NamedTuple):
    """A plan of the policy, in force from `seconds` since launch."""

    seconds: float
    plan: Plan


class RoundView(NamedTuple):
    """A closed round; seconds are since launch."""

    seconds: float
    round: int
    divergence: float | None
    """The largest of all ranks."""
    sync_ms: float


class RunHistory:
    """A run so far, with its history."""

    def __init__(self) -> None:
        self.run = RunFigures()
        self.changes = 0
        """Number of records added."""
        self.series = Series()
        self.complete: list[EpochFigures] = []
        """Complete epochs, without each rank's own scalars."""
        self.plans: list[PlanInForce] = []
        self.rounds = 0
        self.closed: list[RoundView] = []
        self.verdicts: list[tuple[float, GuardVerdict]] = []
        """(Seconds since launch, verdict)."""
        self.warnings: tuple[str, ...] = ()
        """Warnings from before the run began."""
        self.trouble: list[tuple[float, Trouble]] = []
        """(Seconds on the clock of the records, record)."""

    def add(self, record: Record) -> None:
        """Add a record. Records with impossible values are ignored."""
        at = getattr(record, "at", self.run.heard)
        if not math.isfinite(at) or not 0 <= getattr(record, "rank", 0) < MOST_RANKS:
            return
        if len(getattr(record, "counts", ())) > MOST_RANKS:  # a plan for more ranks than any run has
            return
        if isinstance(record, Memory) and self.run.first is None:
            return  # time begins with an event, whichever file is read first
        self.changes += 1
        try:
            self._add(record, at)
        except OverflowError:  # impossible numbers
            return

    def advance(self, at: float) -> None:
        """Note the time of an event that is not shown."""
        if math.isfinite(at):
            self.run.advance(at)

    @property
    def epochs(self) -> list[EpochFigures]:
        """The epochs with any training, in order; the last ones may be incomplete."""
        return [*self.complete, *self.run.epochs.current()]

    def _add(self, record: Record, at: float) -> None:
        plan = self.run.plan
        if isinstance(record, Progress | Memory):
            self._spread(record, self.run.ranks.get(record.rank, RankFigures(reported=at)))
        for epoch in self.run.add(record):
            _keep(self.complete, replace(epoch, rank_scalars={}))
        seconds = self.run.since(at)
        match record:
            case Plan() if is_change(record, plan):
                _keep(self.plans, PlanInForce(seconds, record))
            case RoundClosed():
                self.rounds += 1
                divergence = max((value for value in record.divergence if math.isfinite(value)), default=None)
                _keep(self.closed, RoundView(seconds, record.round, divergence, record.sync_s * 1e3))
            case RunHeader() if isinstance(known := record.spec.get("warnings"), (list, tuple)):
                self.warnings = tuple(str(text) for text in known[:POINTS])
            case GuardVerdict():
                self.verdicts = [*self.verdicts, (seconds, record)][-POINTS:]
            case Join() if all(isinstance(known, Join) for _, known in self.trouble):
                pass  # the first group is no trouble
            case Failed() | Lost() | AverageFailed() | Drop() | Abort() | Leave() | Join() | Joined() | Resumed():
                self.trouble = [*self.trouble, (at, record)][-POINTS:]

    def _spread(self, record: Progress | Memory, rank: RankFigures) -> None:
        """Add to the series what a rank did since its last report; `rank`: its figures before this record."""
        stop = self.run.since(record.at)
        if rank.lost is not None:
            return  # its later reports are ignored
        if isinstance(record, Progress):
            start, loss = self.run.since(rank.reported), math.nan if record.loss_sum is None else record.loss_sum
            what = TimeBin(stop - start, record.steps, record.samples, record.busy_s, loss)
        else:
            start = self.run.since(record.at if rank.used is None else rank.used)
            measured = rank.used is not None and record.cpu_s is not None and record.cpu_s >= rank.cpu_s
            what = TimeBin(
                rss=record.rss_bytes,
                device=record.device_bytes or 0,
                cpu_s=(record.cpu_s or 0.0) - rank.cpu_s if measured else 0.0,
                used_s=stop - start if measured else 0.0,
                gpu_s=(record.device_use or 0.0) * (stop - start),
                gpu_used_s=0.0 if record.device_use is None else stop - start,
            )
        self.series.add(record.rank, start, stop, what)


def _keep(points: list[T], point: T) -> None:
    """Append a point. Beyond `POINTS`, drop every second point of the older half."""
    points.append(point)
    if len(points) > POINTS:
        points[: POINTS // 2] = points[: POINTS // 2 : 2]
