"""Detects ranks that become slow, and why, from what ranks report of their steps. Pure.

A rank is compared with its own earlier windows, so devices of unequal speed do not count as slow. It is also compared with
the other ranks at the same time, by more than they differed before, as a busy machine slows work in places. If the machine
slows all ranks, or one that waits for a core or whose core is slower, the cause is `host`. Decides nothing: El Che gives a
slow rank fewer steps by its own measurements."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace
from statistics import fmean, median_low
from typing import Any

from ddp.core.anomalies.outliers import Scatter
from ddp.core.anomalies.pace import LEAST_PACE, NOTHING, WorkPace, grown, median_of
from ddp.core.anomalies.slow_links import LinkWatch
from ddp.core.messages.commands import Drop, Plan
from ddp.core.messages.event_parts import WorkSeconds
from ddp.core.messages.events import Averaged, Progress, Ready, Resumed
from ddp.core.messages.join_events import Joined

SLOW, SOUND = 1.3, 1.15
"""A window is slow if its samples take this multiple of the time before, and sound if they take at most this multiple; so
must its steps, as each sample of a small batch takes longer. It tells nothing where samples and steps disagree."""
WINDOWS, UNSURE = 2, 3
"""Consecutive slow windows after which a rank counts as slow, and sound ones after which it does not. The second number is
for computing that takes less than `TWICE` as long: a busy machine does that for two windows, too."""
LEAST = 3
"""Windows needed to know a rank's pace."""
KEPT = 16
"""Number of sound windows whose median is the pace."""
CROWDED, SHARED, TWICE = 1.0, 0.25, 2.0
"""A rank is on a crowded machine if it waits for a core for this multiple of the time that its work took before: the second
one explains work that takes up to `TWICE` as long, as a core that is shared is slower while it runs, too; half of it does
where the machine is found slow already. So does a machine that was slow in one of the last `LEAST` windows: it slows ranks
by different factors, and they recover one by one."""
LEAST_S = 0.1
"""Least seconds of work in a window: shorter ones between two averages are combined."""
COMPUTE, INPUT, HOST, LINK = "compute", "input", "host", "link"
CAUSES = (COMPUTE, INPUT, HOST, LINK)
"""Its own computing; late batches; other programs on the machine; its link."""


@dataclass(frozen=True)
class SlowRank:
    """A rank that became slow. Times are seconds on the clock of the records."""

    rank: int
    cause: str
    factor: float
    """Factor on the time of its samples when it was found slow."""
    since: float
    """When its first slow window began."""
    named: float
    windows: int
    """Number of slow windows after which it was found."""
    healed: float | None = None
    """When it was as fast as before; None: not in this run, or it was lost."""


@dataclass
class _Watch:
    """The watch on a rank's own work, or on all that its samples take."""

    row: list[WorkPace] = field(default_factory=list)
    """The last consecutive slow windows; of a rank that counts as slow, sound windows."""
    other: list[WorkPace] = field(default_factory=list)
    """Of a slow rank: the last consecutive windows that were slow for another cause."""
    named: int | None = None
    """Index of the finding, while the rank counts as slow."""

    def enter(self, pace: WorkPace, ratio: float) -> bool:
        """Add a window; return whether the rank changed between slow and sound."""
        if ratio < SLOW if self.named is None else ratio >= SOUND:
            self.row.clear()
            return False
        self.row.append(pace)
        return len(self.row) >= WINDOWS


@dataclass
class _RankWindows:
    """What is known of one rank."""

    began: float | None = None
    """Start of the present window; None: it begins with the next report."""
    samples: int = 0
    steps: int = 0
    cores: list[float] = field(default_factory=list)
    """How long the fixed piece of work took, in reports of the present window."""
    spent: WorkPace = NOTHING
    """Seconds of the present window so far."""
    averaged: bool = False
    """Whether the rank has taken in an average in this window."""
    warm: bool = False
    """Whether the first window, which is not representative, is over."""
    sound: deque[WorkPace] = field(default_factory=lambda: deque(maxlen=KEPT))
    compute: float = 1.0
    """Computing in the last window relative to the usual."""
    beside: deque[float] = field(default_factory=lambda: deque(maxlen=LEAST))
    """How many times as long as usual the other ranks computed in its last windows."""
    past: deque[tuple[float, float, int, int]] = field(default_factory=lambda: deque(maxlen=KEPT))
    """(end, seconds of computing, samples, steps) of the last windows."""
    scatter: Scatter = field(default_factory=Scatter)
    """Scatter of its own work relative to the others, while it does not count as slow."""
    work: _Watch = field(default_factory=_Watch)
    whole: _Watch = field(default_factory=_Watch)
    link: LinkWatch = field(default_factory=LinkWatch)


class SlowFold:
    """Takes records one by one; `ranks` are the slow ranks in the order of detection."""

    def __init__(self) -> None:
        self.ranks: list[SlowRank] = []
        self.known = False
        """Whether ranks report where their time goes."""
        self._windows: dict[int, _RankWindows] = {}
        self._in_step = False

    def add(self, record: Any) -> None:
        """Process a record."""
        match record:
            case Progress() if record.work is not None:
                self._progress(record, record.work)
            case Averaged():
                self._of(record.rank).averaged = True
            case Plan():
                self._in_step = record.in_step
            case Ready() | Joined() | Drop():  # a new process, or none
                self._windows[record.rank] = _RankWindows()
                if self._in_step and not isinstance(record, Ready):
                    self._share()
            case Resumed():
                self._windows.clear()

    def _share(self) -> None:
        """Learn paces anew, as each rank's part of a step has changed: what is fixed per step takes more or less of a
        sample. A slow rank keeps its earlier pace, by which it heals; a link has no part in that."""
        for rank, own in self._windows.items():
            if own.work.named is None and own.whole.named is None:
                self._windows[rank] = _RankWindows(link=own.link)

    def _of(self, rank: int) -> _RankWindows:
        if (own := self._windows.get(rank)) is None:
            own = self._windows[rank] = _RankWindows()
        return own

    def _progress(self, event: Progress, work: WorkSeconds) -> None:
        self.known, own = True, self._of(event.rank)
        spent = WorkPace(
            own.spent.compute + work.compute - work.no_core,
            own.spent.data + work.data - work.no_core_data,
            own.spent.host + work.no_core + work.no_core_data,
            event.at - event.busy_s if own.began is None else own.began,
        )
        own.began, own.spent = spent.began, spent
        own.samples, own.steps = own.samples + event.samples, own.steps + event.steps
        own.cores += [work.core] if work.core else []
        own.link.take(work.link)
        if not self._in_step:  # with one transfer per average, every report with a transfer is a window of the link
            self._link(event.rank, own.link, event.at - event.busy_s, event.at)
        # Reports are multiples of 0.1 us: whether a sum reaches the limit must not depend on its order.
        if not own.samples or round(spent.whole, 8) < LEAST_S or not (own.averaged or self._in_step):
            return
        count, steps = own.samples, own.steps
        core = fmean(own.cores) if own.cores else 0.0
        pace = WorkPace(spent.compute / count, spent.data / count, spent.host / count, spent.began, core, count / steps)
        own.past.append((event.at, spent.compute, count, steps))
        own.began, own.samples, own.steps, own.spent, own.averaged = None, 0, 0, NOTHING, False
        own.cores.clear()
        if self._in_step:
            self._link(event.rank, own.link, spent.began, event.at)
        if own.warm:
            self._close(event.rank, own, pace, event.at)
        own.warm = True

    def _link(self, rank: int, link: LinkWatch, began: float, at: float) -> None:
        """End a window of a rank's link."""
        others = (each.link for number, each in self._windows.items() if number != rank)
        if not link.close(began, others):
            return
        named = link.named
        factor, since = link.turn(len(self.ranks))
        if named is None:
            self.ranks.append(SlowRank(rank, LINK, round(factor, 2), since, at, len(link.row)))
        else:
            self.ranks[named] = replace(self.ranks[named], healed=since)

    def _close(self, rank: int, own: _RankWindows, pace: WorkPace, at: float) -> None:
        """Add a completed window of a rank."""
        if len(own.sound) < LEAST:
            own.sound.append(pace)
            return
        usual, named = median_of(own.sound), own.work.named is not None or own.whole.named is not None
        limit = (SOUND if named else SLOW) * usual.whole
        least, most = sorted((pace.whole, pace.whole * pace.batch / usual.batch))
        unlike = least < limit <= most  # in size its batches are too unlike the usual ones to tell
        measured, pace = pace, pace.as_batches_of(usual.batch)
        ratio = pace.own / max(usual.own, LEAST_PACE)
        if ratio < SOUND and not (named and unlike):
            own.sound.append(measured)
        if unlike:
            return
        own.beside.append(self._others(rank, pace.began))
        others = max(own.beside[-1], pace.core / usual.core if usual.core else 1.0)
        own.compute = grown(measured.compute, measured.batch, usual)
        beside, watched = ratio / max(others, 1.0), own.work.named is None
        self._change(rank, own.work, pace, usual, beside, others, at)
        # A slow machine slows its ranks by different factors.
        explained = watched and beside < TWICE and max(own.beside) >= SLOW
        turned = own.work.enter(pace, 1.0 if explained else ratio if self._lasts(own.work, ratio) else beside)
        if watched and not explained and not own.scatter.enter(math.log(max(beside, 1.0)), len(own.work.row)):
            turned = False
        unsure = turned and watched and beside < TWICE and len(own.work.row) < UNSURE
        early = unsure and cause_of(median_of(own.work.row), usual, others) == COMPUTE
        if turned and not early:
            own.scatter.forget()
            self._turn(rank, own.work, usual, at, others, known=own.whole.named is not None)
        if own.whole.enter(pace, pace.whole / max(usual.whole, LEAST_PACE)) and not early:
            if own.work.named is None or own.whole.named is not None:
                self._turn(rank, own.whole, usual, at, 0.0)
            else:
                own.whole.row.clear()  # it is found already, for its own work

    def _change(
        self, rank: int, watch: _Watch, pace: WorkPace, usual: WorkPace, ratio: float, others: float, at: float
    ) -> None:
        """Find a slow rank again if it is now slow for another cause of its own."""
        if watch.named is None:
            return
        if ratio < SLOW or cause_of(pace, usual, others) in (HOST, self.ranks[watch.named].cause):
            watch.other = []
            return
        watch.other.append(pace)
        if len(watch.other) == WINDOWS:
            self._heal(watch, watch.named, watch.other[0].began)
            watch.row, watch.other = watch.other, []
            self._turn(rank, watch, usual, at, others)

    def _others(self, rank: int, since: float) -> float:
        """Return how many times as long as usual the other ranks compute since then. Without ranks that are slow in their
        own computing, this shows what other programs take of the machine."""
        others = [each for number, each in self._windows.items() if number != rank and each.sound]
        ratios = [_computing(each, since) for each in others if self._cause(each.work) != COMPUTE]
        return max(median_low(ratios), LEAST_PACE) if ratios else 1.0

    def _lasts(self, watch: _Watch, ratio: float) -> bool:
        """Return whether a rank is as slow as when it was found, however slow the others became meanwhile."""
        return watch.named is not None and ratio * SLOW > self.ranks[watch.named].factor

    def _cause(self, watch: _Watch) -> str:
        return "" if watch.named is None else self.ranks[watch.named].cause

    def _heal(self, watch: _Watch, named: int, at: float) -> None:
        self.ranks[named] = replace(self.ranks[named], healed=max(at, self.ranks[named].named))
        watch.named = None

    def _turn(self, rank: int, watch: _Watch, usual: WorkPace, at: float, others: float, known: bool = False) -> None:
        """Switch a rank between slow and sound. `others` is 0 if its own work is sound; `known`: `host` is found already."""
        now, row, watch.row = median_of(watch.row), watch.row, []
        if watch.named is not None:
            watch.other = []
            self._heal(watch, watch.named, row[0].began)
            return
        last = row[-1]  # the first window may be slow in part only
        factor = last.own / max(usual.own, LEAST_PACE) if others else last.whole / max(usual.whole, LEAST_PACE)
        cause = cause_of(now, usual, others) if others else HOST
        shared = SHARED / 2 if known else SHARED
        if cause == COMPUTE and now.host > (shared if factor < TWICE else CROWDED) * usual.own:
            cause = HOST  # sharing a core also costs caches and clock speed, so computing itself takes longer
        if cause == HOST and known:
            return
        watch.named = len(self.ranks)
        self.ranks.append(SlowRank(rank, cause, round(factor, 2), row[0].began, at, len(row)))


def cause_of(now: WorkPace, usual: WorkPace, others: float) -> str:
    """Return the cause that grew most in a rank's own work. `others`: how many times as long the other ranks take. If that
    explains the slowness, the cause is the machine."""
    grown = {
        COMPUTE: now.compute - usual.compute * others,
        INPUT: now.data - usual.data,
        HOST: usual.compute * (others - 1.0),
    }
    cause = max(grown, key=grown.__getitem__)
    return HOST if cause == COMPUTE and now.own < SLOW * (usual.own + grown[HOST]) else cause


def _computing(rank: _RankWindows, since: float) -> float:
    """Return how many times as long as usual a rank computes since then, or in its last window."""
    parts = [part for end, *part in rank.past if end > since]
    parts += [[rank.spent.compute, rank.samples, rank.steps]] if rank.samples else []
    if not parts:
        return rank.compute
    seconds, samples, steps = map(sum, zip(*parts, strict=True))
    return grown(seconds / samples, samples / steps, median_of(rank.sound))
