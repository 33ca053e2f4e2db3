"""What changed against an earlier tree: cells that are new or gone, and results and speeds that moved, with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bench import figures
from bench.cells import Cell
from bench.figures import plural
from bench.report.blocks import Block, Bullets, Heading, Text, plain, told
from bench.report.compare import gap
from bench.report.differences import Difference, difference, ratio
from bench.report.page import LINES, NONE, Page, more, table
from bench.schema import Metrics

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
    def quality(self) -> Difference | None:
        """Of the final metric."""
        sign = self.now.about.final.higher_is_better
        before, now = (_values(cell, lambda m: m.final.eval) for cell in (self.before, self.now))
        return difference(before, now, sign)

    def ratio(self, name: str) -> Difference | None:
        """Logarithm of now over before."""
        value, _ = RATIOS[name]
        return ratio(_values(self.before, value), _values(self.now, value))

    @property
    def same_bits(self) -> bool:
        """Whether the seeds of both ended with the same parameters."""
        before, now = ({(m.seed, m.params_sha256) for m in cell.ok} for cell in (self.before, self.now))
        return bool(before) and before == now and all(digest is not None for _, digest in before)

    @property
    def changed(self) -> bool:
        """Whether anything moved beyond its interval, or in status; where there is no interval, at all in the result."""
        quality = self.quality
        if self.before.status != self.now.status or (quality is None) != (not self.now.ok):
            return True
        if quality is not None and (quality.decided or (quality.low is None and quality.value != 0)):
            return True
        return any(moved.decided for name in RATIOS if (moved := self.ratio(name)) is not None)


def section(page: Page) -> list[Block]:
    """Counts, lists, and a table of what changed."""
    if page.previous is None:
        return []
    before, now = {cell.name: cell for cell in page.previous}, {cell.name: cell for cell in page.cells}
    pairs = [Pair(before[name], cell) for name, cell in now.items() if name in before]
    changed = [pair for pair in pairs if pair.changed]
    new, gone = [name for name in now if name not in before], [name for name in before if name not in now]
    same = sum(pair.same_bits for pair in pairs)
    head = (
        f"Against the earlier tree: **{plural(len(new), 'cell')} new, {len(gone)} gone, {len(changed)} changed**, "
        f"{len(pairs) - len(changed)} not changed. In {same} of {plural(len(pairs), 'common cell')} all seeds ended with "
        "the same bits. "
    )
    tests = sum(_intervals(pair) for pair in pairs)
    how = (
        "*Changed* is what has another status, or an interval (95 %, Student's t over seeds) that leaves out no change; or, "
        f"with too few seeds for an interval, another result. {plural(tests, 'interval')} were made: of so many, about "
        f"{0.05 * tests:.0f} leave it out by chance."
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


def _names(what: str, names: list[str]) -> list[Block]:
    if not names:
        return []
    lines = Bullets(tuple(plain(name) for name in names[:LINES]))
    return told(Text(f"{what}:"), lines, more(len(names) - LINES, "cell"))


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
    return {
        "cell": plain(pair.now.name),
        "status": plain(status),
        "n: before, now": f"{len(pair.before.one_each)}, {len(pair.now.one_each)}",
        "final metric": f"{_mean(pair.before)} → {_mean(pair.now)}",
        "difference (+ is better)": shown,
        **{f"{name}: × before": _times(pair.ratio(name)) for name in RATIOS},
    }


def _mean(cell: Cell) -> str:
    return NONE if cell.eval.mean is None else figures.metric(cell.eval.mean)


def _times(found: Difference | None) -> str:
    return NONE if found is None else _spoken(found, lambda value: f"{math.exp(value):.3f}")


def _spoken(found: Difference, show: Callable[[float], str]) -> str:
    """`+0.10 pt [-0.05 pt, +0.25 pt]`, strong where the interval leaves out no change."""
    if found.low is None or found.high is None:
        return show(found.value)
    text = f"{show(found.value)} [{show(found.low)}, {show(found.high)}]"
    return f"**{text}**" if found.decided else text


def _data(pairs: list[Pair]) -> pd.DataFrame:
    def flat(name: str, found: Difference | None) -> dict[str, float]:
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
