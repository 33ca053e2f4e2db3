"""Changes since an earlier tree: cells that are new or gone, and changes of the results and speeds of the others, with
intervals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from bench.base import number_format
from bench.base.number_format import plural
from bench.report.blocks import Block, Heading, Text, nonempty, plain
from bench.report.measures.compare import gap, in_points
from bench.report.measures.differences import MeanDifference, difference, factor, ratio
from bench.report.measures.time_to_target import all_reached, reach
from bench.report.measures.timing import Timing
from bench.report.page import NONE, Page, bullets, listed, table
from bench.results.cells import Cell, links_of
from bench.results.schema import Metrics
from bench.validate.baselines.fingerprint import cell_config, flat, one_machine

Value = Callable[[Metrics], float | None]
SPEED, ARRIVAL = "samples/s", "samples to target"
"""Figures that are compared as a ratio."""

OWN = ("training.code", "training.data", "training.dependencies")
BESIDE = ("audit", "timing", "code", "cluster.bind", *OWN)
"""Settings that change nothing of a training, or are what is measured."""


@dataclass(frozen=True)
class Pair:
    """The same cell in the earlier tree and in this one."""

    before: Cell
    now: Cell

    @property
    def quality(self) -> MeanDifference | None:
        """Change of the final metric; positive is better. None if a side has no result."""
        return difference(*self._values(lambda m: m.final.eval), self.now.about.final.higher_is_better)

    @property
    def growth(self) -> MeanDifference | None:
        """Change of the final metric, now − before; negative is better for a loss."""
        change = self.quality
        if change is None or self.now.about.final.higher_is_better:
            return change
        low, high = (None if end is None else -end for end in (change.high, change.low))
        return replace(change, value=-change.value + 0.0, low=low, high=high)

    def growth_words(self, value: float) -> str:
        """Format a value of `growth`."""
        return gap(-value, self.now.about.final.eval_metric, points=in_points(self.before, self.now))

    @cached_property
    def timings(self) -> tuple[Timing, Timing]:
        """The runs that times are taken from, earlier and now."""
        return Timing.of(self.before), Timing.of(self.now)

    @cached_property
    def one_clock(self) -> bool:
        """Whether the times of both are real, or both are simulated."""
        return len({m.source for timing in self.timings for m in timing.runs}) == 1

    @cached_property
    def timed(self) -> bool:
        """Whether a change of the times can be put down to the code: all runs have the same kind of machine and clock,
        and no other program disturbed them."""
        before, now = self.timings
        return self.one_clock and one_machine([*before.runs, *now.runs]) and not (before.disturbed or now.disturbed)

    @property
    def ratios(self) -> dict[str, MeanDifference | None]:
        """Name of a ratio -> logarithm of now over before; of samples to the target only if no seed missed it."""
        arrived = all_reached(self.before, self.now)
        return {
            SPEED: ratio(*(timing.speeds for timing in self.timings)),
            ARRIVAL: ratio(*self._values(lambda m: m.target.samples)) if arrived else None,
        }

    @cached_property
    def reached(self) -> tuple[float, float]:
        """Share of the seeds that reached the target, earlier and now."""
        before, now = (side.reached / side.n if side.n else 0.0 for side in map(reach, (self.before, self.now)))
        return before, now

    def _values(self, value: Value) -> tuple[list[float | None], list[float | None]]:
        """Return a value for each seed, earlier and now; a seed counts once, even if it was trained several times."""
        return [value(m) for m in self.before.one_each], [value(m) for m in self.now.one_each]

    @property
    def same_bits(self) -> bool:
        """Whether both have the same seeds and each ended with the same parameters."""
        before, now = ({(m.seed, m.params_sha256) for m in cell.ok} for cell in (self.before, self.now))
        return bool(before) and before == now and all(digest is not None for _, digest in before)

    @cached_property
    def otherwise(self) -> tuple[str, ...]:
        """Names of the settings that differ, among those that both know; a change of the code is what is measured."""
        if self.before.about.config_hash == self.now.about.config_hash:
            return ()
        before, now = (flat(cell_config(cell.runs[0].config)) for cell in (self.before, self.now))
        known = [name for name in before if name in now and not {name, name.partition(".")[0]} & set(BESIDE)]
        return tuple(name for name in known if before[name] != now[name])

    @property
    def retrained(self) -> bool:
        """Return whether a setting differs, such as the epochs, the batch, the learning rate or the limit on gradients."""
        before, now = (cell.workload._replace(digests=()) for cell in (self.before, self.now))
        return before != now or bool(self.otherwise)

    @property
    def changed(self) -> bool:
        """Whether the settings, the status or the share of seeds that reached the target changed, or the interval of a
        figure excludes zero change. If the final metric has no interval: whether it changed at all."""
        quality = self.quality
        if self.retrained or self.before.status != self.now.status or self.reached[0] != self.reached[1]:
            return True
        if (quality is None) != (not self.now.ok):
            return True
        if quality is not None and (quality.decided or (quality.low is None and quality.value != 0)):
            return True
        ratios = [moved for name, moved in self.ratios.items() if self.timed or name != SPEED]
        return any(moved is not None and moved.decided for moved in ratios)


def section(page: Page) -> list[Block]:
    """Return the counts of new, gone and changed cells, their lists, and a table of the changes; [] without an earlier
    tree."""
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
        "the same parameters, bit for bit. "
    )
    moves = [move for pair in pairs for move in (pair.quality, *pair.ratios.values())]
    tests = sum(move is not None and move.low is not None for move in moves)
    how = (
        "*Changed* is what has another status, is trained otherwise, misses the target more or less often, or has an "
        "interval (95 %, Student's t over seeds) that excludes no change; or, with too few seeds for an interval, another "
        f"result. If nothing had changed, chance would show a change in about {0.05 * tests:.1f} of "
        f"{plural(tests, 'interval')}."
    )
    page.data("changes", [_data(pair) for pair in pairs])
    return nonempty(
        Heading("What changed"),
        Text(head + how),
        _names("New", new),
        _names("Gone", gone),
        table(map(_row, changed), left=2),
        Text("[Data of all common cells](changes.csv)") if pairs else None,
    )


def common(before: Sequence[Cell], now: Sequence[Cell]) -> list[Pair]:
    """Pair the cells of both trees and return the pairs in the order of `now`. Cells with the same configuration are
    paired first; then those that are alone, in both trees, with their model, data, recipe, mode, ranks and devices.
    Labels are not compared, because they are unique within a tree only."""
    pairs: dict[int, Pair] = {}
    for same in (_configuration, _kind):
        taken = _cells(pairs.values())
        theirs, mine = (_single([cell for cell in side if id(cell) not in taken], same) for side in (before, now))
        pairs |= {id(cell): Pair(theirs[key], cell) for key, cell in mine.items() if key in theirs}
    return [pairs[id(cell)] for cell in now if id(cell) in pairs]


def _cells(pairs: Iterable[Pair]) -> set[int]:
    return {id(cell) for pair in pairs for cell in (pair.before, pair.now)}


def _single(cells: Sequence[Cell], key: Callable[[Cell], Hashable]) -> dict[Hashable, Cell]:
    """Return key -> cell for the keys that exactly one cell has."""
    counts = Counter(map(key, cells))
    return {key(cell): cell for cell in cells if counts[key(cell)] == 1}


def _configuration(cell: Cell) -> Hashable:
    return cell.workload, cell.about.mode, cell.about.world_size, cell.about.config_hash


def _kind(cell: Cell) -> Hashable:
    w, m = cell.workload, cell.about
    devices = (m.world_size, tuple(m.emulated_speeds), tuple(m.scripted_faults), links_of(cell.runs[0]))
    return w.model, w.depth, w.data, w.recipe, w.metric, m.mode, devices


def _names(what: str, cells: list[Cell]) -> list[Block]:
    names = [plain(f"{cell.workload.model} {cell.label} ({cell.workload.detail})") for cell in cells]
    return [Text(f"{what}:"), *bullets(names, "cell")] if names else []


def _row(pair: Pair) -> dict[str, str]:
    status = pair.now.status if pair.before.status == pair.now.status else f"{pair.before.status} → {pair.now.status}"
    courses = [side.workload.course for side in (pair.before, pair.now)]
    course = f" ({' → '.join(courses)})" if courses[0] != courses[1] else ""
    course = course or (f" (other {listed(pair.otherwise)})" if pair.otherwise else "")
    return {
        "cell": plain(f"{pair.now.name}{course}"),
        "status": plain(status),
        "n: before, now": f"{len(pair.before.one_each)}, {len(pair.now.one_each)}",
        "final metric": f"{_mean(pair.before)} → {_mean(pair.now)}",
        "difference": _shown(pair.growth, pair.growth_words),
        **{f"{name}: × before": _shown(ratio, _factor) for name, ratio in pair.ratios.items()},
        **({f"{ARRIVAL}: × before": arrivals(pair)} if pair.reached[0] != pair.reached[1] else {}),
    }


def arrivals(pair: Pair) -> str:
    """Return how many seeds reached the target, earlier and now."""
    sides = [reach(cell) for cell in (pair.before, pair.now)]
    return " → ".join(f"{side.reached} of {side.n}" for side in sides)


def _mean(cell: Cell) -> str:
    return NONE if cell.eval.mean is None else number_format.metric(cell.eval.mean)


def _factor(logarithm: float) -> str:
    return f"{factor(logarithm):.3f}"


def _shown(change: MeanDifference | None, show: Callable[[float], str]) -> str:
    """Format as `+0.10 pt [-0.05 pt, +0.25 pt]`, in bold if the interval excludes zero change."""
    if change is None:
        return NONE
    if change.low is None or change.high is None:
        return show(change.value)
    text = f"{show(change.value)} [{show(change.low)}, {show(change.high)}]"
    return f"**{text}**" if change.decided else text


def _data(pair: Pair) -> dict[str, object]:
    moved = {"difference": pair.growth, **{f"log ratio of {name}": ratio for name, ratio in pair.ratios.items()}}
    ends = {
        f"{name}{end}": getattr(change, field, math.nan)
        for name, change in moved.items()
        for end, field in (("", "value"), ("_low", "low"), ("_high", "high"))
    }
    about = {"cell": pair.now.name, "n_before": len(pair.before.one_each), "n": len(pair.now.one_each)}
    return {**about, "changed": pair.changed, **ends}
