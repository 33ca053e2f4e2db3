"""The four key figures of page one on a workload. Each names its way of training; figures without evidence are left
out. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.base.number_format import plural
from bench.report.blocks import Tile, plain
from bench.report.measures.differences import Quality
from bench.report.measures.intervals import Interval
from bench.report.page import NONE, percent
from bench.report.page_one.answer import Answer, Option
from bench.report.page_one.words import (
    SEVERAL_TARGETS,
    UNMEASURED,
    between,
    difference,
    names,
    percents,
    remedy,
    span,
    state,
)

GOOD = "as good as one device"
"""Name of the first figure."""


def tiles(each: Answer) -> tuple[Tile, ...]:
    """Return the figures: how many ways are as good as one device; the time to the target and the speed of the way of
    training that the answer names; and the largest loss of quality."""
    best, worst = each.chosen, lowest(each.options)
    known = (
        quality_tile(each.options),
        None if best is None else _time(best),
        None if best is None else _speed(best),
        None if worst is None else _lowest(worst),
    )
    return tuple(tile for tile in known if tile is not None)


def quality_tile(options: Sequence[Option]) -> Tile:
    """Return how many of the ways of training are as good as one device, and which are worse or undecided."""
    if (tile := unjudged(options)) is not None:
        return tile
    groups: dict[str, list[Option]] = {}
    for option in options:
        if not option.passed:
            groups.setdefault(_group(option), []).append(option)
    notes = [f"{words}: {names(some, options)}" for words, some in groups.items()]
    passed = sum(option.passed for option in options)
    value = f"{passed} of {len(options)}" + (" ways" if len(options) > 1 else " way")
    if options and all(option.failing is not None and option.failing.name == "INCONCLUSIVE" for option in options):
        value = "not decided yet"
    return Tile(GOOD, value, "; ".join(notes) or "none is worse by more than is allowed")


def unjudged(options: Sequence[Option]) -> Tile | None:
    """Return the figure shown if no option has a verdict."""
    judged = any(option.judged or option.own or option.failing is not None for option in options)
    return None if judged else Tile(GOOD, NONE, "no verdicts: there is no baseline", dim=True)


def _group(option: Option) -> str:
    words = {"NO_BASELINE": "no baseline", "REFUSED": "nothing comparable"}
    return state(option) if option.failing is None else words.get(option.failing.name, state(option))


def _time(best: Option) -> Tile:
    label = "time to target / one device's"
    if best.time is None:
        untargeted = best.cell.about.target.value is None
        reached = best.rival.elsewhere or f"reached by {best.reach.reached} of {best.reach.n} seeds"
        why = "no target is set" if untargeted else SEVERAL_TARGETS if best.several_targets else reached
        note = f"{plain(best.cell.label)}: {why}"
        return Tile(label, NONE, note, dim=True)
    return _measured(label, best, best.time, lambda ratio: f"{ratio.value:.2f} ×", between)


def _speed(best: Option) -> Tile | None:
    efficiency, size = best.efficiency, best.cell.about.world_size
    if efficiency is None:
        return None
    label = "speed / one device's" if size == 1 else f"efficiency on {plural(size, 'device')}"
    return _measured(label, best, efficiency, lambda ratio: percent(ratio.value), percents)


def _measured(
    label: str, best: Option, ratio: Interval, show: Callable[[Interval], str], interval: Callable[[Interval], str]
) -> Tile:
    """Return a ratio with its interval; if the interval is too wide or missing, why, and the remedy."""
    name = plain(best.cell.label)
    if best.disturbed:
        return Tile(label, UNMEASURED, f"{name}: other programs used the cores; rerun on idle ones", dim=True)
    if ratio.wide:
        note = f"{name}: {between(ratio)}; {remedy(best, ratio, decide=False)}"
        return Tile(label, UNMEASURED, note, dim=True)
    return Tile(label, show(ratio), f"{name}; {interval(ratio)}", dim=not ratio.measured)


def lowest(options: Sequence[Option]) -> Option | None:
    """Return the way of training furthest below its baseline, measured in margins."""
    known = [(option.quality, option) for option in options if option.quality is not None]
    margins = {option.cell.about.final.eval_metric: each.margin for each, option in known if each.margin}

    def behind(pair: tuple[Quality, Option]) -> float:
        return pair[0].difference.value / (pair[0].margin or margins.get(pair[1].cell.about.final.eval_metric) or 1.0)

    return min(known, key=behind)[1] if known else None


def _lowest(option: Option) -> Tile:
    metric = plain(option.cell.about.final.eval_metric)
    interval = f"95 %: {span(option).removesuffix(' pt')}" if span(option) else "no interval"
    worse = option.quality is not None and option.quality.difference.value < 0
    value = difference(option).lstrip("+-") if worse else "none"
    return Tile(f"largest loss of {metric}", value, f"{plain(option.cell.label)}: {difference(option)}, {interval}")
