"""What a report recommends for a workload: which way of training gets to the target soonest, as good as one device. Pure.

A recommendation wants four things of a cell: every verdict passes, all its seeds reach the target, its devices are real ones
of their own, and the 95 % interval of its time to the target, over solo's, lies below 1. Whatever is not told apart from
the best one is named beside it. Nothing is judged here: verdicts are those of `bench validate`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bench.report.compare import Rival, rivals
from bench.report.differences import MeanDifference, Quality, qualities, ratio
from bench.report.page import Page
from bench.report.time_to_target import Reach, reach
from bench.results.cells import Cell
from bench.validate import Verdict
from bench.validate.statistics import next_look

Kind = Literal["use", "one", "open", "nothing"]
"""Recommend ways of training; one device; neither, as the evidence does not decide; or there is nothing to compare."""
GRAVEST = ("FAIL", "REFUSED", "SUSPICIOUS", "XPASS", "VARIANCE_SHIFT", "EXPIRED", "INCONCLUSIVE", "NO_BASELINE")
"""Verdicts that did not pass, the first first."""


@dataclass(frozen=True)
class Interval:
    """A ratio over solo's, with its 95 % interval; None: too few seeds for one."""

    value: float
    low: float | None = None
    high: float | None = None

    @staticmethod
    def of(logarithm: MeanDifference | None) -> Interval | None:
        """Return the ratio of a difference of logarithms."""
        if logarithm is None:
            return None
        ends = (None if end is None else math.exp(end) for end in (logarithm.low, logarithm.high))
        return Interval(math.exp(logarithm.value), *ends)


@dataclass(frozen=True)
class Option:
    """One way of training a workload, against one device."""

    rival: Rival
    reach: Reach
    time: Interval | None
    """Seconds to the target over solo's; None: a seed of either never came there."""
    speed: Interval | None
    """Samples per second over solo's."""
    quality: Quality | None
    failing: Verdict | None
    """The gravest verdict that did not pass."""
    limits: tuple[str, ...]
    """Why its times say little of devices of one's own."""

    @property
    def cell(self) -> Cell:
        """What it is a cell of."""
        return self.rival.cell

    @property
    def sound(self) -> bool:
        """Whether nothing but its time stands between it and a recommendation."""
        judged = self.quality is not None and self.quality.verdict is not None
        return judged and self.failing is None and self.time is not None and not self.limits

    @property
    def lasts(self) -> float:
        """Its time over one device's; infinite where that is not known."""
        return math.inf if self.time is None else self.time.value

    @property
    def sooner(self) -> bool:
        """Whether it is shown to be at the target before one device. One seed shows nothing."""
        return self.reach.n > 1 and self.time is not None and self.time.high is not None and self.time.high < 1

    @property
    def later(self) -> bool:
        """Whether it is shown to be there after one device."""
        return self.reach.n > 1 and self.time is not None and self.time.low is not None and self.time.low > 1


@dataclass(frozen=True)
class Answer:
    """What to take for a workload, and why."""

    kind: Kind
    options: tuple[Option, ...]
    """Every cell but solo: what did not pass first, then by time to the target."""
    chosen: Option | None = None
    """What is recommended, or comes nearest to it."""
    equals: tuple[Option, ...] = ()
    """Whatever the evidence does not tell apart from it."""
    reason: str = ""
    """Why nothing is recommended."""
    seeds: int = 0
    """How many more seeds of `chosen` the next look takes."""


def answer(page: Page, cells: list[Cell]) -> Answer:
    """Decide for one workload."""
    options = tuple(sorted(_options(page, cells), key=order))
    solo = next((rival.solo for rival in rivals(cells)), None)
    if solo is None:
        return Answer("nothing", options, reason="no run of one device is here (`mode=solo` trains one)")
    if not options:
        return Answer("nothing", options, reason="one device is all that was tried")
    sound = [option for option in options if option.sound]
    if sooner := [option for option in sound if option.sooner]:
        best, *others = sooner
        return Answer("use", options, best, tuple(each for each in others if not _apart(best, each)))
    if sound and all(option.later for option in sound):
        return Answer("one", options, sound[0])
    return _undecided(options, sound)


def _undecided(options: tuple[Option, ...], sound: Sequence[Option]) -> Answer:
    nearest = min(sound or options, key=lambda option: option.lasts)
    seeds = len(nearest.cell.one_each)
    more = (next_look(seeds) or seeds) - seeds
    if sound:
        few = nearest.reach.n < 2 or nearest.time is None or nearest.time.high is None
        reason = "one seed shows no spread" if few else "nothing is shown to be sooner or later than one device"
        return Answer("open", options, nearest, reason=reason, seeds=max(more, 1))
    if not any(option.quality is not None and option.quality.verdict is not None for option in options):
        return Answer("open", options, nearest, reason="no verdict on quality: there is no baseline")
    limited = [option for option in options if option.failing is None and option.time is not None and option.limits]
    if limited:
        nearest = min(limited, key=lambda option: option.lasts)
        return Answer("open", options, nearest, reason=f"times are of {nearest.limits[0]}")
    if nearest.failing is not None and nearest.failing.name == "INCONCLUSIVE":
        return Answer("open", options, nearest, reason="its quality is not decided", seeds=more)
    return Answer("open", options, nearest, reason="nothing that passed reached the target with every seed")


def _options(page: Page, cells: list[Cell]) -> list[Option]:
    quality = {row.cell.name: row for row in qualities(page, cells)}
    failing = gravest(page.verdicts)
    return [
        _option(page, rival, quality.get(rival.cell.name), failing.get(rival.cell.name))
        for rival in rivals(cells)
        if not rival.cell.is_solo
    ]


def _option(page: Page, rival: Rival, quality: Quality | None, failing: Verdict | None) -> Option:
    mine, theirs = (reach(cell) if cell else None for cell in (rival.cell, rival.solo))
    assert mine is not None
    seconds = [side.seconds for side in (theirs, mine) if side is not None and side.reached == side.n > 0]
    time = ratio(*seconds) if len(seconds) == 2 else None
    speeds = [[m.throughput.samples_per_s for m in cell.one_each] for cell in (rival.solo, rival.cell) if cell]
    speed = ratio(*speeds) if len(speeds) == 2 else None
    return Option(rival, mine, Interval.of(time), Interval.of(speed), quality, failing, _limits(page, rival))


def _limits(page: Page, rival: Rival) -> tuple[str, ...]:
    about, cores = rival.cell.about, page.cores(rival.cell)
    limits = {
        "emulated devices": about.emulated_speeds,
        "runs with faults made on purpose": about.scripted_faults,
        "runs that lost a rank": rival.cell.bereft,
        f"more ranks than the {cores} cores": cores is not None and cores < about.world_size,
        "one device of several ranks' speed": rival.solo is not None and rival.solo.about.emulated_speeds,
    }
    return tuple(text for text, present in limits.items() if present)


def gravest(verdicts: Sequence[Verdict]) -> dict[str, Verdict]:
    """Return cell -> the gravest of its verdicts that did not pass."""
    worst: dict[str, Verdict] = {}
    for verdict in sorted((each for each in verdicts if each.name in GRAVEST), key=lambda v: GRAVEST.index(v.name)):
        worst.setdefault(verdict.cell, verdict)
    return worst


def _apart(best: Option, other: Option) -> bool:
    apart = ratio(best.reach.seconds, other.reach.seconds)
    return apart is not None and apart.decided


def order(option: Option) -> tuple[object, ...]:
    """Return what cells are sorted by: what did not pass first, the gravest before, then the time to the target."""
    grave = GRAVEST.index(option.failing.name) if option.failing is not None else len(GRAVEST)
    return grave, option.lasts, option.cell.name
