"""What a report recommends for a workload: which way of training gets to the target soonest, as good as one device. Pure.

A recommendation wants four things of a cell: every verdict passes, all its seeds reach the target, its devices are real ones
of their own, and the 95 % interval of its time to the target, over solo's, lies below 1. Times are those of the runs that no
other program disturbed; where there are not two of them, they are not to be relied on. Of those whose times are not told
apart from the quickest's, the one of the best quality is recommended, and the others are named beside it. Nothing is judged
here: verdicts are those of `bench validate`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bench.report.compare import Rival, rivals
from bench.report.differences import Quality, qualities, ratio
from bench.report.intervals import Interval
from bench.report.page import Page
from bench.report.time_to_target import Reach, reach
from bench.report.timing import Timing
from bench.results.cells import Cell
from bench.validate import Verdict
from bench.validate.fingerprint import one_machine

Kind = Literal["use", "one", "open", "nothing"]
"""Recommend ways of training; one device; neither, as the evidence does not decide; or there is nothing to compare."""
Why = Literal[
    "", "no solo", "alone", "disturbed", "seeds", "spread", "baseline", "limited", "undecided", "failed", "missed"
]
"""What a recommendation lacks."""
GRAVEST = ("FAIL", "REFUSED", "SUSPICIOUS", "XPASS", "VARIANCE_SHIFT", "EXPIRED", "INCONCLUSIVE", "NO_BASELINE")
"""Verdicts that did not pass, the first first."""


@dataclass(frozen=True)
class Option:
    """One way of training a workload, against one device."""

    rival: Rival
    reach: Reach
    timing: Timing
    time: Interval | None
    """Seconds to the target over solo's; None: a seed of either never came there, or they were not measured."""
    speed: Interval | None
    """Samples per second over solo's."""
    quality: Quality | None
    failing: Verdict | None
    """The gravest verdict that did not pass."""
    limits: tuple[str, ...]
    """Why its times say little of devices of one's own."""
    disturbed: bool = False
    """Whether other programs used the cores of its runs or solo's, so that its times say little."""

    @property
    def cell(self) -> Cell:
        """What it is a cell of."""
        return self.rival.cell

    @property
    def efficiency(self) -> Interval | None:
        """Its speed over that of its devices together, if nothing were lost."""
        return None if self.speed is None else self.speed.over(self.rival.ideal)

    @property
    def judged(self) -> bool:
        """Whether there is a verdict on its quality."""
        return self.quality is not None and self.quality.verdict is not None

    @property
    def unjudged(self) -> bool:
        """Whether nothing is known of its quality because there is no baseline."""
        return not self.judged and (self.failing is None or self.failing.name == "NO_BASELINE")

    @property
    def passed(self) -> bool:
        """Whether it is as good as one device, and nothing else is wrong with it."""
        return self.judged and self.failing is None

    @property
    def sound(self) -> bool:
        """Whether nothing but its time stands between it and a recommendation."""
        return self.passed and self.time is not None and not self.limits and not self.disturbed

    @property
    def sooner(self) -> bool:
        """Whether it is shown to be at the target before one device. One seed, or one rank, shows nothing."""
        return self._shown and self.time is not None and self.time.high is not None and self.time.high < 1

    @property
    def later(self) -> bool:
        """Whether it is shown to be there after one device."""
        return self._shown and self.time is not None and self.time.low is not None and self.time.low > 1

    @property
    def _shown(self) -> bool:
        return self.reach.n > 1 < self.cell.about.world_size and not self.disturbed


@dataclass(frozen=True)
class Answer:
    """What to take for a workload, and why."""

    kind: Kind
    options: tuple[Option, ...]
    """Every cell but solo: what did not pass first, then by time to the target."""
    chosen: Option | None = None
    """What is recommended: of the quickest and those not told apart from it, the one of the best quality. Or what is spoken
    of instead: the first that passed, in the order of the options."""
    equals: tuple[Option, ...] = ()
    """What is as quick, as far as the evidence tells."""
    why: Why = ""
    """Why nothing is recommended."""


def answer(page: Page, cells: list[Cell]) -> Answer:
    """Decide for one workload."""
    options = tuple(sorted(options_of(page, rivals(cells)), key=order))
    if not options:
        return Answer("nothing", options, why="alone")
    if options[0].rival.solo is None:
        return Answer("nothing", options, options[0], why="no solo")
    sound = [option for option in options if option.sound]
    if sooner := [option for option in sound if option.sooner]:
        quickest, *others = sooner
        alike = [quickest, *(each for each in others if not apart(quickest, each))]
        best = max(alike, key=_gain)
        return Answer("use", options, best, tuple(each for each in alike if each is not best))
    if sound and all(option.later for option in sound):
        return Answer("one", options, sound[0])
    return Answer("open", options, *_lacking(options, sound))


def _lacking(options: Sequence[Option], sound: Sequence[Option]) -> tuple[Option, tuple[Option, ...], Why]:
    """Return what comes first of those that lack least, none beside it, and what it lacks."""

    def first(some: Sequence[Option], why: Why) -> tuple[Option, tuple[Option, ...], Why]:
        return some[0], (), why

    if sound:
        few = all(each.reach.n < 2 or each.time is None or each.time.high is None for each in sound)
        return first(sound, "seeds" if few else "spread")
    passed = [option for option in options if option.passed]
    if troubled := [option for option in passed or options if option.disturbed]:
        return first(troubled, "disturbed")
    if all(option.unjudged for option in options):
        return first(options, "baseline")
    if limited := [option for option in passed if option.limits]:
        return first(limited, "limited")
    if passed:
        return first(passed, "missed")
    if undecided := [option for option in options if option.failing and option.failing.name == "INCONCLUSIVE"]:
        return first(undecided, "undecided")
    return first(options, "failed")


def options_of(page: Page, compared: Sequence[Rival]) -> list[Option]:
    """Return the cells but solo, each against its reference: they share a task, one of whose solo cells is the reference."""
    quality = {row.cell.name: row for row in qualities(page, [rival.cell for rival in compared])}
    failing = gravest(page.verdicts)
    return [_option(page, rival, quality.get(rival.cell.name), failing) for rival in compared if not rival.cell.is_solo]


def _option(page: Page, rival: Rival, quality: Quality | None, failing: dict[str, Verdict]) -> Option:
    whole, mine = reach(rival.cell), Timing.of(rival.cell)
    wrong = failing.get(rival.cell.name)
    if rival.solo is None:
        return Option(rival, whole, mine, None, None, quality, wrong, _limits(page, rival, failing), mine.disturbed)
    theirs, time = Timing.of(rival.solo), time_over_solo(rival)
    speed = Interval.of(ratio(theirs.speeds, mine.speeds)) if rival.one_clock else None
    limits = _limits(page, rival, failing)
    if not one_machine([*theirs.runs, *mine.runs]):
        limits = (*limits, "another machine than one device's")
    return Option(rival, whole, mine, time, speed, quality, wrong, limits, mine.disturbed or theirs.disturbed)


def time_over_solo(rival: Rival) -> Interval | None:
    """Return the seconds to the target over solo's, of geometric means; None: a seed of either missed it, or two clocks."""
    both = () if rival.solo is None else (rival.solo, rival.cell)
    if not both or not rival.one_clock or any(side.reached < side.n or not side.n for side in map(reach, both)):
        return None
    theirs, mine = (Timing.of(cell).seconds for cell in both)
    return Interval.of(ratio(theirs, mine))


def _limits(page: Page, rival: Rival, failing: dict[str, Verdict]) -> tuple[str, ...]:
    about, cores = rival.cell.about, page.cores(rival.cell)
    wrong = None if rival.solo is None else failing.get(rival.solo.name)
    limits = {
        "one rank, which is one device": about.world_size == 1,
        "simulated devices": about.source is not None,
        "emulated devices": about.emulated_speeds,
        "runs with faults made on purpose": about.scripted_faults,
        "runs that lost a rank": rival.cell.bereft,
        f"more ranks than the {cores} cores": cores is not None and cores < about.world_size,
        "one device of several ranks' speed": rival.solo is not None and rival.solo.about.emulated_speeds,
        "one device that is simulated": rival.solo is not None and rival.solo.about.source is not None,
        "one device that did not pass itself": wrong is not None and wrong.name == "FAIL",
    }
    return tuple(text for text, present in limits.items() if present)


def gravest(verdicts: Sequence[Verdict]) -> dict[str, Verdict]:
    """Return cell -> the gravest of its verdicts that did not pass; of several as grave, that on quality."""
    worst: dict[str, Verdict] = {}
    wrong = [verdict for verdict in verdicts if verdict.name in GRAVEST]
    for verdict in sorted(wrong, key=lambda v: (GRAVEST.index(v.name), v.check != "quality")):
        worst.setdefault(verdict.cell, verdict)
    return worst


def _gain(option: Option) -> float:
    """Return how much better its final metric is than one device's."""
    return -math.inf if option.quality is None else option.quality.difference.value


def apart(best: Option, other: Option) -> bool:
    """Tell whether which of two is sooner at the target is decided."""
    time = ratio(best.timing.seconds, other.timing.seconds)
    return time is not None and time.decided


def order(option: Option) -> tuple[object, ...]:
    """Return what cells are sorted by: what did not pass first, the gravest before; then what is shown to be sooner than one
    device, what is not shown, what is later, each by its time, and last what has none. A time that says nothing stands
    behind those that do."""
    grave = GRAVEST.index(option.failing.name) if option.failing is not None else len(GRAVEST)
    time = option.time
    if time is None:
        return grave, 3, False, math.inf, option.cell.name
    return grave, 0 if option.sooner else 2 if option.later else 1, time.wide, time.value, option.cell.name
