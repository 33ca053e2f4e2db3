"""The four key figures of page one over several workloads or series. Each figure names its cell. Decides nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bench.base.number_format import plural
from bench.report.blocks import Tile, plain
from bench.report.measures.intervals import Interval
from bench.report.page import percent
from bench.report.page_one.answer import Option, order
from bench.report.page_one.tiles import GOOD, lowest, unjudged
from bench.report.page_one.words import difference, ends, span, state


class Portion(NamedTuple):
    """One workload or series of several: its name, its ways of training, and the recommended one."""

    name: str
    options: Sequence[Option]
    best: Option | None


def tiles(parts: Sequence[Portion]) -> tuple[Tile, ...]:
    """Return four figures: how many results are as good as one device, the best time to the target and the best
    efficiency among the recommended options, and the worst result. Returns () for fewer than two parts."""
    single = list({option.cell.name: option for part in parts for option in part.options}.values())
    if len(parts) < 2 or not single:
        return ()
    names = {option.cell.name: part.name for part in reversed(parts) for option in part.options}
    worst = lowest(single)
    shown = (
        _quality(single),
        _best("time to target / one device's", parts, lambda option: option.time, _times),
        _best("efficiency", parts, lambda option: option.efficiency, percent, lowest_first=False),
        None if worst is None else _worst(names[worst.cell.name], worst),
    )
    return tuple(tile for tile in shown if tile is not None)


def _quality(options: Sequence[Option]) -> Tile:
    """Return how many options are as good as one device, and how many have each other outcome, the most serious
    first."""
    if (tile := unjudged(options)) is not None:
        return tile
    passed = sum(option.passed for option in options)
    others = sorted((option for option in options if not option.passed), key=lambda option: order(option)[:1])
    counts = Counter(map(state, others))
    notes = "; ".join(f"{words}: {count}" for words, count in counts.items())
    return Tile(GOOD, f"{passed} of {plural(len(options), 'result')}", notes)


def _best(
    label: str,
    parts: Sequence[Portion],
    of: Callable[[Option], Interval | None],
    show: Callable[[float], str],
    lowest_first: bool = True,
) -> Tile | None:
    """Return the best ratio among the recommended options, with its interval, its part and its option, followed by the
    range of the others. `of`: reads the ratio. `show`: formats it. None if no ratio was measured."""
    known = [(ratio, part.name, part.best) for part in parts if part.best is not None and (ratio := of(part.best))]
    known = sorted((row for row in known if row[0].measured), key=lambda row: row[0].value, reverse=not lowest_first)
    if not known:
        return None
    (ratio, name, best), *others = known
    interval = ends(ratio.low or 0.0, ratio.high or 0.0)
    if show is percent:
        interval = f"{percent(ratio.low).removesuffix(' %')} to {percent(ratio.high)}"
    rest = "" if not others else f"; {others[0][1]}: " if len(others) == 1 else f"; {len(others)} others to "
    rest += show(others[-1][0].value) if others else ""
    return Tile(label, show(ratio.value), f"{name}, {plain(best.cell.label)} ({interval}){rest}")


def _times(ratio: float) -> str:
    return f"{ratio:.2f} ×"


def _worst(name: str, option: Option) -> Tile:
    interval = f" ({span(option).removesuffix(' pt')})" if span(option) else ""
    metric = plain(option.cell.about.final.eval_metric)
    return Tile(f"worst {metric}", difference(option), f"{name}, {plain(option.cell.label)}{interval}")
