"""Ranks that become slow, and why: the fold of what ranks report of their steps. Pure.

A rank is held against its own earlier windows, so devices of unequal speed are not slow; and against the others in the same
seconds, by more than the two came apart before, as work itself takes longer on a busy machine, now here and now there. What
the machine takes from all ranks, or from one that waits for a core, is no fault of a rank: its cause is `host`. Decides
nothing: El Che gives a slow rank fewer steps by what it measures itself.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ddp.core.commands import Drop, Plan
from ddp.core.event_parts import WorkSeconds
from ddp.core.events import Averaged, Progress, Ready, Resumed
from ddp.core.join_events import Joined
from ddp.core.scatter import Scatter
from ddp.core.slow_links import LinkWatch
from ddp.core.values import replace

SLOW, SOUND = 1.3, 1.15
"""A window is slow when its samples take so many times as long as before; and sound when they take at most so many times."""
WINDOWS = 2
"""So many slow windows in a row name a rank, and so many sound ones end that."""
LEAST = 3
"""Windows that a pace is known from."""
KEPT = 16
"""Sound windows that a pace is the median of."""
LEAST_PACE = 1e-9
"""Seconds for a sample, below which nothing is measured."""
CROWDED = 1.0
"""A rank that waits for a core for so many times as long as all its work took before is on a crowded machine."""
LEAST_S = 0.1
"""Least work of a window, seconds: shorter ones between two averages are taken together."""
COMPUTE, INPUT, HOST, LINK = "compute", "input", "host", "link"
CAUSES = (COMPUTE, INPUT, HOST, LINK)
"""Its own work on a batch; batches that come late; the machine, which others use; its link, over which it sends."""


@dataclass(frozen=True)
class SlowRank:
    """A rank that became slow. Times are seconds on the clock of the records."""

    rank: int
    cause: str
    factor: float
    """So many times as long as before its samples took when it was named."""
    since: float
    """When its first slow window began."""
    named: float
    windows: int
    """So many windows after that began the rank was named."""
    healed: float | None = None
    """When it was as fast as before again; None: not in this run, or the rank went."""


@dataclass(frozen=True)
class _Pace:
    """Seconds for each sample of a window, by cause."""

    compute: float
    data: float
    host: float
    """When there was no core; in none of the two."""
    began: float

    @property
    def own(self) -> float:
        return self.compute + self.data

    @property
    def whole(self) -> float:
        return self.own + self.host


NOTHING = _Pace(0.0, 0.0, 0.0, 0.0)


@dataclass
class _Watch:
    """What is watched of a rank: its own work, or all that its samples take."""

    row: list[_Pace] = field(default_factory=list)
    """The last windows that were all slow; of a rank that is named, all sound."""
    other: list[_Pace] = field(default_factory=list)
    """Of a rank that is named, the last windows that were all slow for another cause."""
    named: int | None = None
    """Place of what it was named for, while that lasts."""

    def enter(self, pace: _Pace, ratio: float) -> bool:
        """Enter a window; return whether the rank is now slow that was not, or the other way round."""
        if ratio < SLOW if self.named is None else ratio >= SOUND:
            self.row.clear()
            return False
        self.row.append(pace)
        return len(self.row) >= WINDOWS


@dataclass
class _RankWindows:
    """One rank so far."""

    began: float | None = None
    """When the window in progress began; None: with the next report."""
    samples: int = 0
    spent: _Pace = NOTHING
    """Seconds of the window so far."""
    averaged: bool = False
    """The rank has taken in an average since."""
    warm: bool = False
    """The first window is over, which says nothing."""
    sound: deque[_Pace] = field(default_factory=lambda: deque(maxlen=KEPT))
    compute: float = 1.0
    """Of the last window: computing over what is usual."""
    past: deque[tuple[float, float, int]] = field(default_factory=lambda: deque(maxlen=KEPT))
    """(end, seconds of computing, samples) of the last windows."""
    scatter: Scatter = field(default_factory=Scatter)
    """How far its own work and the others' come apart while it is not named."""
    work: _Watch = field(default_factory=_Watch)
    whole: _Watch = field(default_factory=_Watch)
    link: LinkWatch = field(default_factory=LinkWatch)


class SlowFold:
    """Records in, one by one; `ranks` are those that became slow, in the order in which they were named."""

    def __init__(self) -> None:
        self.ranks: list[SlowRank] = []
        self.known = False
        """Whether ranks say where their time goes."""
        self._windows: dict[int, _RankWindows] = {}
        self._in_step = False

    def add(self, record: Any) -> None:
        """Take note of a record."""
        match record:
            case Progress() if record.work is not None:
                self._progress(record, record.work)
            case Averaged():
                self._of(record.rank).averaged = True
            case Plan():
                self._in_step = record.in_step
            case Ready() | Joined() | Drop():  # another process, or none
                self._windows[record.rank] = _RankWindows()
            case Resumed():
                self._windows.clear()

    def _of(self, rank: int) -> _RankWindows:
        return self._windows.setdefault(rank, _RankWindows())

    def _progress(self, event: Progress, work: WorkSeconds) -> None:
        self.known, own = True, self._of(event.rank)
        spent = _Pace(
            own.spent.compute + work.compute - work.no_core,
            own.spent.data + work.data - work.no_core_data,
            own.spent.host + work.no_core + work.no_core_data,
            event.at - event.busy_s if own.began is None else own.began,
        )
        own.began, own.spent = spent.began, spent
        own.samples += event.samples
        own.link.take(work.link)
        if not self._in_step:  # a transfer for each average: every report of one is a window of the link
            self._link(event.rank, own.link, event.at - event.busy_s, event.at)
        if not own.samples or spent.whole < LEAST_S or not (own.averaged or self._in_step):
            return
        count = own.samples
        pace = _Pace(spent.compute / count, spent.data / count, spent.host / count, spent.began)
        own.past.append((event.at, spent.compute, count))
        own.began, own.samples, own.spent, own.averaged = None, 0, NOTHING, False
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

    def _close(self, rank: int, own: _RankWindows, pace: _Pace, at: float) -> None:
        """Enter a window that is over."""
        if len(own.sound) < LEAST:
            own.sound.append(pace)
            return
        usual = _median(own.sound)
        ratio, others = pace.own / max(usual.own, LEAST_PACE), self._others(rank, pace.began)
        own.compute = pace.compute / max(usual.compute, LEAST_PACE)
        if ratio < SOUND:
            own.sound.append(pace)
        beside = ratio / max(others, 1.0)
        self._change(rank, own.work, pace, usual, beside, others, at)
        turned, watched = own.work.enter(pace, beside), own.work.named is None
        if watched and not own.scatter.enter(math.log(max(beside, 1.0)), len(own.work.row)):
            turned = False
        if turned:
            own.scatter.forget()
            self._turn(rank, own.work, usual, at, others)
        if own.whole.enter(pace, pace.whole / max(usual.whole, LEAST_PACE)):
            if own.work.named is None or own.whole.named is not None:
                self._turn(rank, own.whole, usual, at, 0.0)
            else:
                own.whole.row.clear()  # it is named already, for its own work

    def _change(
        self, rank: int, watch: _Watch, pace: _Pace, usual: _Pace, ratio: float, others: float, at: float
    ) -> None:
        """Name a slow rank anew that is slow now for another cause of its own."""
        if watch.named is None:
            return
        if ratio < SLOW or cause_of(pace, usual, others) in (HOST, self.ranks[watch.named].cause):
            watch.other = []
            return
        watch.other.append(pace)
        if len(watch.other) == WINDOWS:
            self.ranks[watch.named] = replace(self.ranks[watch.named], healed=watch.other[0].began)
            watch.named, watch.row, watch.other = None, watch.other, []
            self._turn(rank, watch, usual, at, others)

    def _others(self, rank: int, since: float) -> float:
        """Return how many times as long as usual the other ranks compute since then, but those that are slow for that of
        their own: what other programs take of the machine shows there, whatever else a rank waits for."""
        others = [each for number, each in self._windows.items() if number != rank and each.sound]
        ratios = [_computing(each, since) for each in others if self._cause(each.work) != COMPUTE]
        return max(median(ratios), LEAST_PACE) if ratios else 1.0

    def _cause(self, watch: _Watch) -> str:
        return "" if watch.named is None else self.ranks[watch.named].cause

    def _turn(self, rank: int, watch: _Watch, usual: _Pace, at: float, others: float) -> None:
        """Name a rank, or enter that it is as fast as before again. `others` 0: its own work is sound."""
        now, row = _median(watch.row), watch.row
        watch.row = []
        if watch.named is not None:
            self.ranks[watch.named] = replace(self.ranks[watch.named], healed=row[0].began)
            watch.named, watch.other = None, []
            return
        last = row[-1]  # the first one may have been slow in part
        factor = last.own / max(usual.own, LEAST_PACE) if others else last.whole / max(usual.whole, LEAST_PACE)
        watch.named = len(self.ranks)
        cause = cause_of(now, usual, others) if others else HOST
        if cause == COMPUTE and now.host > CROWDED * usual.own:
            cause = HOST  # who shares a core so much also loses caches and clock: its work itself takes longer
        self.ranks.append(SlowRank(rank, cause, round(factor, 2), row[0].began, at, len(row)))


def cause_of(now: _Pace, usual: _Pace, others: float) -> str:
    """Return why a rank's own work takes longer: what grew most. `others`: how many times as long the other ranks take;
    where they became slow with it, and it is not slow by what they take, it is the machine."""
    grown = {
        COMPUTE: now.compute - usual.compute * others,
        INPUT: now.data - usual.data,
        HOST: usual.compute * (others - 1.0),
    }
    cause = max(grown, key=grown.__getitem__)
    return HOST if cause == COMPUTE and now.own < SLOW * (usual.own + grown[HOST]) else cause


def _computing(rank: _RankWindows, since: float) -> float:
    """Return how many times as long as usual a rank computes in what it did since then, or in its last window."""
    parts = [(seconds, samples) for end, seconds, samples in rank.past if end > since]
    parts += [(rank.spent.compute, rank.samples)] if rank.samples else []
    samples = sum(count for _, count in parts)
    if not samples:
        return rank.compute
    return sum(seconds for seconds, _ in parts) / samples / max(_median(rank.sound).compute, LEAST_PACE)


def _median(paces: Iterable[_Pace]) -> _Pace:
    columns = zip(*((each.compute, each.data, each.host, each.began) for each in paces), strict=True)
    return _Pace(*(median(column) for column in columns))
