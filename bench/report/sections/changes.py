"""What changed against an earlier tree: cells that are new or gone, and results and speeds that moved, with intervals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bench.base import figures
from bench.base.figures import plural
from bench.report.blocks import Block, Bullets, Heading, Text, plain, told
from bench.report.compare import gap
from bench.report.differences import MeanDifference, difference, ratio
from bench.report.page import LINES, NONE, Page, more, table
from bench.results.cells import Cell
from bench.results.schema import Metrics

Value = Callable[[Metrics], float | None]
RATIOS: dict[str, tuple[Value, bool]] = {
    "samples/s": (lambda m: m.throughput.samples_per_s, True),
    "samples to target": (lambda m: m.target.samples, False),
}
"""What is compared as a ratio -> how to read it, whether larger is better."""


@dataclass(frozen=True)
class Pair:
    """A cell of both trees."""

    before: Cell
    now: Cell

    @property
    def quality(self) -> MeanDifference | None:
        """Of the final metric."""
        sign = self.now.about.final.higher_is_better
        before, now = (_values(cell, lambda m: m.final.eval) for cell in (self.before, self.now))
        return difference(before, now, sign)

    def ratio(self, name: str) -> MeanDifference | None:
        """Logarithm of now over before."""
        value, _ = RATIOS[name]
        return ratio(_values(self.before, value), _values(self.now, value))

    @property
    def same_bits(self) -> bool:
        """Whether the seeds of both ended with the same parameters."""
        before, now = ({(m.seed, m.params_sha256) for m in cell.ok} for cell in (self.before, self.now))
        return bool(before) and before == now and all(digest is not None for _, digest in before)

    @property
    def retrained(self) -> bool:
        """Whether epochs, batch, rate or limit on gradients are not what they were."""
        return self.before.workload != self.now.workload

    @property
    def changed(self) -> bool:
        """Whether it is trained otherwise, or anything moved beyond its interval, or in status; where there is no interval,
        at all in the result."""
        quality = self.quality
        if self.retrained or self.before.status != self.now.status or (quality is None) != (not self.now.ok):
            return True
        if quality is not None and (quality.decided or (quality.low is None and quality.value != 0)):
            return True
        return any(moved.decided for name in RATIOS if (moved := self.ratio(name)) is not None)


def section(page: Page) -> list[Block]:
    """Counts, lists, and a table of what changed."""
    if page.previous is None:
        return []
    pairs = common(page.previous, page.cells)
    changed = [pair for pair in pairs if pair.changed]
    both = _cells(pairs)
    new, gone = ([cell for cell in side if id(cell) not in both] for side in (page.cells, page.previous))
    same = sum(pair.same_bits for pair in pairs)
    head = (
        f"Against the earlier tree: **{plural(len(new), 'cell')} new, {len(gone)} gone, {len(changed)} changed**, "
        f"{len(pairs) - len(changed)} not changed. In {same} of {plural(len(pairs), 'common cell')} all seeds ended with "
        "the same bits. "
    )
    tests = sum(_intervals(pair) for pair in pairs)
    how = (
        "*Changed* is what has another status, is trained otherwise, or has an interval (95 %, Student's t over seeds) that "
        f"leaves out no change; or, with too few seeds for an interval, another result. {plural(tests, 'interval')} "
        f"were made: of so many, about {0.05 * tests:.0f} leave it out by chance."
    )
    page.data("changes", _data(pairs))
    return told(
        Heading("What changed"),
        Text(head + how),
        _names("New", new),
        _names("Gone", gone),
        table([_row(pair) for pair in changed], left=2) if changed else None,
        Text("[Data of all common cells](changes.csv)") if pairs else None,
    )


def common(before: Sequence[Cell], now: Sequence[Cell]) -> list[Pair]:
    """The cells of both trees, in the order of `now`: those of one configuration; of the others, those that are the only
    ones of their model, data, recipe, mode, ranks and devices. (Their names tell cells apart in their own tree only.)"""
    found: dict[int, Pair] = {}
    for same in (_configuration, _kind):
        taken = _cells(found.values())
        theirs, mine = (_single([cell for cell in side if id(cell) not in taken], same) for side in (before, now))
        found |= {id(cell): Pair(theirs[key], cell) for key, cell in mine.items() if key in theirs}
    return [found[id(cell)] for cell in now if id(cell) in found]


def _cells(pairs: Iterable[Pair]) -> set[int]:
    return {id(cell) for pair in pairs for cell in (pair.before, pair.now)}


def _single(cells: Sequence[Cell], key: Callable[[Cell], Hashable]) -> dict[Hashable, Cell]:
    """Those with a key that no other one has, by it."""
    counts = Counter(map(key, cells))
    return {key(cell): cell for cell in cells if counts[key(cell)] == 1}


def _configuration(cell: Cell) -> Hashable:
    return cell.workload, cell.about.mode, cell.about.world_size, cell.about.config_hash


def _kind(cell: Cell) -> Hashable:
    w, m = cell.workload, cell.about
    devices = (m.world_size, tuple(m.emulated_speeds), tuple(m.scripted_faults))
    return w.model, w.depth, w.data, w.recipe, w.metric, m.mode, devices


def _names(what: str, found: list[Cell]) -> list[Block]:
    if not found:
        return []
    names = [f"{cell.workload.model} {cell.label} ({cell.workload.detail})" for cell in found[:LINES]]
    return told(Text(f"{what}:"), Bullets(tuple(map(plain, names))), more(len(found) - LINES, "cell"))


def _values(cell: Cell, value: Value) -> list[float | None]:
    """One for each seed, however often it was trained."""
    return [value(m) for m in cell.one_each]


def _intervals(pair: Pair) -> int:
    found = [pair.quality, *(pair.ratio(name) for name in RATIOS)]
    return sum(one is not None and one.low is not None for one in found)


def _row(pair: Pair) -> dict[str, str]:
    metric = pair.now.about.final.eval_metric
    status = pair.now.status if pair.before.status == pair.now.status else f"{pair.before.status} → {pair.now.status}"
    quality = pair.quality
    shown = NONE if quality is None else _spoken(quality, lambda value: gap(-value, metric))
    course = f" ({pair.before.workload.course} → {pair.now.workload.course})" if pair.retrained else ""
    return {
        "cell": plain(f"{pair.now.name}{course}"),
        "status": plain(status),
        "n: before, now": f"{len(pair.before.one_each)}, {len(pair.now.one_each)}",
        "final metric": f"{_mean(pair.before)} → {_mean(pair.now)}",
        "difference (+ is better)": shown,
        **{f"{name}: × before": _times(pair.ratio(name)) for name in RATIOS},
    }


def _mean(cell: Cell) -> str:
    return NONE if cell.eval.mean is None else figures.metric(cell.eval.mean)


def _times(found: MeanDifference | None) -> str:
    return NONE if found is None else _spoken(found, lambda value: f"{math.exp(value):.3f}")


def _spoken(found: MeanDifference, show: Callable[[float], str]) -> str:
    """`+0.10 pt [-0.05 pt, +0.25 pt]`, strong where the interval leaves out no change."""
    if found.low is None or found.high is None:
        return show(found.value)
    text = f"{show(found.value)} [{show(found.low)}, {show(found.high)}]"
    return f"**{text}**" if found.decided else text


def _data(pairs: list[Pair]) -> pd.DataFrame:
    def flat(name: str, found: MeanDifference | None) -> dict[str, float]:
        ends = (None, None, None) if found is None else (found.value, found.low, found.high)
        return {
            f"{name}{end}": np.nan if value is None else value
            for end, value in zip(("", "_low", "_high"), ends, strict=True)
        }

    return pd.DataFrame(
        [
            {
                "cell": pair.now.name,
                "n_before": len(pair.before.one_each),
                "n": len(pair.now.one_each),
                "changed": pair.changed,
                **flat("difference", pair.quality),
                **{
                    key: value
                    for name in RATIOS
                    for key, value in flat(f"log ratio of {name}", pair.ratio(name)).items()
                },
            }
            for pair in pairs
        ]
    )
