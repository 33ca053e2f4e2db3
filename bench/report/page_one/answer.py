"""The recommendation of a report for a workload: the way of training that reaches the target soonest with a quality as
good as one device's. Pure.

A cell is recommended on four conditions: every verdict passes, that on quality against one device, all its seeds reach
the target, each rank has a real device of its own, and the 95 % interval of its time to the target over solo's lies below
1. Times come from runs that no other program disturbed; with fewer than two such runs, times are marked as unreliable. Of
the cells whose times cannot be told apart from the quickest, those are left whose quality cannot be told apart from the
best one; of these the plainest is recommended: first one whose ranks train in step, then the mode that `bench list` shows
first. The others are named beside it. Verdicts are those of `bench validate`; nothing is judged here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from bench.report.measures.compare import Rival, distortions, rivals
from bench.report.measures.differences import Quality, qualities, ratio
from bench.report.measures.intervals import Interval
from bench.report.measures.time_to_target import Reach, all_reached, reach, targets
from bench.report.measures.timing import Timing
from bench.report.page import Page
from bench.results.cells import Cell
from bench.validate import Verdict
from bench.validate.verdicts.verdict import FAILED, Name
from ddp.engine.modes import modes

Kind = Literal["use", "one", "open", "nothing"]
"""What is recommended: a way of training; one device; nothing yet, because the evidence does not decide; or nothing,
because there is nothing to compare."""
Why = Literal[
    "", "no solo", "alone", "disturbed", "seeds", "spread", "baseline", "limited", "undecided", "failed", "missed"
]
"""Why there is no recommendation."""
GRAVEST: tuple[Name, ...] = (
    *("FAIL", "REFUSED", "SUSPICIOUS", "XPASS", "VARIANCE_SHIFT"),
    *("EXPIRED", "XFAIL", "INCONCLUSIVE", "NO_BASELINE"),
)
"""Verdicts that did not pass, the most serious first."""


@dataclass(frozen=True)
class Option:
    """One way of training a workload, compared with one device."""

    rival: Rival
    reach: Reach
    timing: Timing
    time: Interval | None
    """Seconds to the target over solo's; None: a seed of either missed the target, targets differ, or times were not
    measured, or elsewhere than solo's."""
    speed: Interval | None
    """Samples per second over solo's."""
    quality: Quality | None
    failing: Verdict | None
    """The most serious verdict that did not pass; None: all passed."""
    limits: tuple[str, ...]
    """Reasons why its times do not carry over to real, separate devices."""
    disturbed: bool = False
    """Whether other programs used the cores of its runs or solo's, which makes its times unreliable."""
    own: bool = False
    """Whether its quality is judged against a baseline of its own mode, which says nothing of one device."""

    @property
    def cell(self) -> Cell:
        """The cell of this option."""
        return self.rival.cell

    @property
    def several_targets(self) -> bool:
        """Whether its runs and solo's were to reach different targets, so that times are not compared."""
        return len(targets([self.cell] if self.rival.solo is None else [self.cell, self.rival.solo])) > 1

    @property
    def efficiency(self) -> Interval | None:
        """Its speed over the summed speed of its devices; None where solo's is of another machine or kind of device."""
        return None if self.speed is None or self.rival.elsewhere else self.speed.over(self.rival.ideal)

    @property
    def judged(self) -> bool:
        """Whether there is a verdict on its quality against one device."""
        return self.quality is not None and self.quality.verdict is not None

    @property
    def unjudged(self) -> bool:
        """Whether its quality is unknown because there is no baseline."""
        return not self.judged and not self.own and (self.failing is None or self.failing.name == "NO_BASELINE")

    @property
    def undecided(self) -> bool:
        """Whether its quality is not decided against one device, or another check of it is not."""
        return self.failing is not None and self.failing.name == "INCONCLUSIVE" and not self.own

    @property
    def passed(self) -> bool:
        """Whether its quality is as good as one device's and all other verdicts pass."""
        return self.judged and self.failing is None

    @property
    def sound(self) -> bool:
        """Whether it meets all conditions of a recommendation but the time."""
        return self.passed and self.time is not None and not self.limits and not self.disturbed

    @property
    def sooner(self) -> bool:
        """Whether it is shown to reach the target before one device. One seed or one rank shows nothing."""
        return self._shown and self.time is not None and self.time.high is not None and self.time.high < 1

    @property
    def later(self) -> bool:
        """Whether it is shown to reach the target after one device."""
        return self._shown and self.time is not None and self.time.low is not None and self.time.low > 1

    @property
    def _shown(self) -> bool:
        return self.reach.n > 1 < self.cell.about.world_size and not self.disturbed


@dataclass(frozen=True)
class Answer:
    """The recommendation for a workload, and why."""

    kind: Kind
    options: tuple[Option, ...]
    """Every cell but solo: first those that did not pass, then by time to the target."""
    chosen: Option | None = None
    """The recommended option: the plainest of those not told apart from the quickest by time, nor from the best of these
    by quality. Without a recommendation, the option that the text discusses instead: the first that passed, in the
    order of the options."""
    equals: tuple[Option, ...] = ()
    """Options that are as quick, as far as the evidence shows."""
    why: Why = ""
    """Why nothing is recommended."""


def answer(page: Page, cells: list[Cell]) -> Answer:
    """Return the recommendation for the workload of `cells`, with its reason."""
    options = tuple(sorted(options_of(page, rivals(cells)), key=order))
    if not options:
        return Answer("nothing", options, why="alone")
    if options[0].rival.solo is None:
        return Answer("nothing", options, options[0], why="no solo")
    sound = [option for option in options if option.sound]
    if sooner := [option for option in sound if option.sooner]:
        quickest, *others = sooner
        quick = [quickest, *(each for each in others if not apart(quickest, each))]
        best = plainest(quick)
        return Answer("use", options, best, tuple(each for each in quick if each is not best))
    if sound and all(option.later for option in sound):
        return Answer("one", options, sound[0])
    return Answer("open", options, *_lacking(options, sound))


def _lacking(options: Sequence[Option], sound: Sequence[Option]) -> tuple[Option, tuple[Option, ...], Why]:
    """Return the option that lacks least for a recommendation, no equals, and what it lacks."""

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
    if undecided := [option for option in options if option.undecided]:
        return first(undecided, "undecided")
    return first(options, "failed")


def options_of(page: Page, compared: Sequence[Rival]) -> list[Option]:
    """Return an option for each cell but solo, compared with its reference: a solo cell of the same task."""
    quality = {row.cell.name: row for row in qualities(page, [rival.cell for rival in compared], own=False)}
    own = {v.cell for v in page.verdicts if v.check == "quality" and v.figures is not None and v.figures.own}
    failing = gravest(page.verdicts)
    options = [_option(page, each, quality.get(each.cell.name), failing) for each in compared if not each.cell.is_solo]
    return [replace(option, own=option.cell.name in own) for option in options]


def _option(page: Page, rival: Rival, quality: Quality | None, failing: dict[str, Verdict]) -> Option:
    whole, mine = reach(rival.cell), Timing.of(rival.cell)
    wrong = failing.get(rival.cell.name)
    if rival.solo is None:
        return Option(rival, whole, mine, None, None, quality, wrong, _limits(page, rival, failing), mine.disturbed)
    theirs, time = Timing.of(rival.solo), time_over_solo(rival)
    speed = Interval.of(ratio(theirs.speeds, mine.speeds)) if rival.one_clock else None
    limits = _limits(page, rival, failing)
    return Option(rival, whole, mine, time, speed, quality, wrong, limits, mine.disturbed or theirs.disturbed)


def time_over_solo(rival: Rival) -> Interval | None:
    """Return the seconds to the target over solo's, of geometric means. None: a seed of either missed the target, the
    targets differ, or only one of them has real time, or that of another machine or kind of device."""
    both = () if rival.solo is None else (rival.solo, rival.cell)
    if not both or not rival.one_clock or rival.elsewhere or not all_reached(*both):
        return None
    theirs, mine = (Timing.of(cell).seconds for cell in both)
    return Interval.of(ratio(theirs, mine))


def _limits(page: Page, rival: Rival, failing: dict[str, Verdict]) -> tuple[str, ...]:
    about, cores = rival.cell.about, page.cores(rival.cell)
    wrong = None if rival.solo is None else failing.get(rival.solo.name)
    limits = {
        "one rank, which is one device": about.world_size == 1,
        **dict.fromkeys(distortions(rival.cell), True),
        "runs that lost a rank": rival.cell.bereft,
        f"more ranks than the {cores} cores": cores is not None and cores < about.world_size,
        "one device of several ranks' speed": rival.solo is not None and rival.solo.about.emulated_speeds,
        "one device that is simulated": rival.solo is not None and rival.solo.about.source is not None,
        "one device that did not pass itself": wrong is not None and wrong.name in FAILED,
        rival.elsewhere: rival.solo is not None and rival.elsewhere,
    }
    return tuple(text for text, present in limits.items() if present)


def gravest(verdicts: Sequence[Verdict]) -> dict[str, Verdict]:
    """Return cell -> the most serious of its verdicts that did not pass; among equally serious ones, that on
    quality."""
    worst: dict[str, Verdict] = {}
    wrong = [verdict for verdict in verdicts if verdict.name in GRAVEST]
    for verdict in sorted(wrong, key=lambda v: (GRAVEST.index(v.name), v.check != "quality")):
        worst.setdefault(verdict.cell, verdict)
    return worst


def plainest(options: Sequence[Option]) -> Option:
    """Return, of those whose quality cannot be told from the best one's, the first of those whose ranks do equally many
    steps, else the first, in the order of the registries. The best by a difference that chance explains would be a
    draw."""
    best, known = max(options, key=_gain), modes()
    places = {name: (not mode.alike, place) for place, (name, mode) in enumerate(known.items())}
    equal = [option for option in options if option is best or alike(best, option)]
    return min(equal, key=lambda each: (*places.get(each.cell.about.mode, (True, len(known))), each.cell.label))


def alike(mine: Option, theirs: Option) -> bool:
    """Return whether the final metric of each lies in the interval of the other's."""
    if mine.quality is None or theirs.quality is None:
        return False
    a, b = mine.quality.difference, theirs.quality.difference
    ends = ((b.value, a.low, a.high), (a.value, b.low, b.high))
    return all(low is not None and high is not None and low <= value <= high for value, low, high in ends)


def _gain(option: Option) -> float:
    """Return how much better the option's final metric is than one device's."""
    return -math.inf if option.quality is None else option.quality.difference.value


def apart(best: Option, other: Option) -> bool:
    """Tell whether the evidence decides which of two options reaches the target sooner."""
    time = ratio(best.timing.seconds, other.timing.seconds)
    return time is not None and time.decided


def order(option: Option) -> tuple[object, ...]:
    """Return the sort key of options: first those that did not pass, the most serious first; then those shown to be
    sooner than one device, the undecided, the later ones, each by time; last those without a time. Unreliable times
    come after reliable ones."""
    grave = GRAVEST.index(option.failing.name) if option.failing is not None else len(GRAVEST)
    time = option.time
    if time is None:
        return grave, 3, False, math.inf, option.cell.name
    return grave, 0 if option.sooner else 2 if option.later else 1, time.wide, time.value, option.cell.name
