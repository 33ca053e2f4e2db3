"""Changes between two sets of runs, by cell: the result, samples per second, the time to the target. Pure.

A cell is worse or better if an interval excludes zero change, if its status changed, or if more or fewer seeds reach the
target than chance explains. Of other cells only the interval is known. Nothing is judged here: margins are those of
`bench validate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from bench.report.measures.differences import MeanDifference, factor, ratio
from bench.report.measures.time_to_target import all_reached, reach, targets
from bench.report.sections.changes import Pair, common
from bench.results.cells import Cell
from bench.validate.statistics.rates import SURPRISE, excess

Trend = Literal["worse", "otherwise", "better", "open", "same"]
"""Change of a cell: an interval shows a loss; it is trained with other settings; an interval shows a gain; there is no
interval, or a few seeds more or fewer reach the target; or no interval excludes zero change."""
TRENDS: tuple[Trend, ...] = ("worse", "otherwise", "better", "open", "same")
"""The trends, the most important to the reader first."""


@dataclass(frozen=True)
class Side:
    """One set of runs: its name and origin."""

    name: str
    cells: tuple[Cell, ...]

    def values(self, key: str) -> list[str]:
        """Return the values of `commit`, `machine`, or a package that its runs have."""
        known = {_origin(run.metrics.git, run.metrics.env, key) for cell in self.cells for run in cell.runs}
        return sorted(value for value in known if value)


def _origin(git: dict[str, Any], env: dict[str, Any], key: str) -> str:
    if key == "commit":
        sha = git.get("sha")
        return f"{str(sha)[:12]}{' and changes' if git.get('dirty') else ''}" if sha else ""
    if key == "machine":
        gpus = env.get("gpus")
        cards = f", {', '.join(map(str, gpus))}" if isinstance(gpus, list) and gpus else ""
        return f"{env.get('cpu', '?')}, {env.get('cores', '?')} cores{cards}" if env else ""
    return str(env.get(key, ""))


@dataclass(frozen=True)
class CellMove:
    """A cell that both sides have."""

    pair: Pair

    @property
    def name(self) -> str:
        """Its name on the later side."""
        return self.pair.now.name

    @cached_property
    def quality(self) -> MeanDifference | None:
        """Change of the final metric; positive: better."""
        return self.pair.quality

    @cached_property
    def speed(self) -> MeanDifference | None:
        """Logarithm of samples per second, now over before."""
        return ratio(*(timing.speeds for timing in self.pair.timings))

    @cached_property
    def time(self) -> MeanDifference | None:
        """Logarithm of the time to the target, now over before; None if a seed missed the target, or targets differ."""
        if not all_reached(self.pair.before, self.pair.now):
            return None
        return ratio(*(timing.seconds for timing in self.pair.timings))

    @cached_property
    def arrivals(self) -> int:
        """-1: fewer seeds reach the target than before; 1: more do; 0: neither is shown, or targets differ."""
        sides = [reach(cell) for cell in (self.pair.before, self.pair.now)]
        if len(targets([self.pair.before, self.pair.now])) != 1 or not all(side.n for side in sides):
            return 0
        for sign, (base, other) in ((-1, sides), (1, sides[::-1])):
            if excess(base.n, other.n)[base.n - base.reached, other.n - other.reached] < SURPRISE / 2:
                return sign
        return 0

    @cached_property
    def endings(self) -> int:
        """-1: seeds fail or diverge where none did, all where some ended well, or more of them than chance explains; 1: the
        same backwards; 0: neither. What was interrupted by hand is left out."""
        sides = [[run.metrics.status for run in cell.counted] for cell in (self.pair.before, self.pair.now)]
        ended = [[status for status in side if status != "killed"] for side in sides]
        counts = [(len(side) - side.count("ok"), len(side)) for side in ended]
        if not all(n for _, n in counts):
            return 0
        return next(
            (sign for sign, (base, other) in ((-1, counts), (1, counts[::-1])) if _fails_more(*base, *other)), 0
        )

    @property
    def losses(self) -> list[str]:
        """Names of the figures that an interval, or the status, shows to be worse."""
        return self._shown(-1)

    @property
    def gains(self) -> list[str]:
        """Names of the figures that are shown to be better."""
        return self._shown(1)

    def _shown(self, sign: int) -> list[str]:
        turned = {"result": (self.quality, 1)}
        if self.pair.timed:
            turned |= {"samples/s": (self.speed, 1), "time to target": (self.time, -1)}
        names = [name for name, (move, way) in turned.items() if move and move.decided and sign * way * move.value > 0]
        stated = {"status": self.endings, "target": self.arrivals}
        return [*(name for name, change in stated.items() if sign * change > 0), *names]

    @property
    def trend(self) -> Trend:
        """The direction of the change."""
        if self.losses:
            return "worse"
        if self.pair.retrained:
            return "otherwise"
        if self.gains:
            return "better"
        moves = [move for move in (self.quality, self.speed if self.pair.timed else None) if move is not None]
        unsure = self.quality is not None and self.quality.low is None and self.quality.value != 0
        known = any(move.low is not None for move in moves) and len(set(self.pair.reached)) == 1 and not unsure
        return "same" if known or self.pair.same_bits else "open"


def _fails_more(before: int, n_before: int, now: int, n: int) -> bool:
    """Return whether more seeds fail now, of `n`, than before."""
    known = 0 == before < now or (before < n_before and now == n)
    return known or bool(excess(n_before, n)[before, now] < SURPRISE / 2)


def moves(before: Side, now: Side) -> list[CellMove]:
    """Return the changes of the cells that both sides have: by trend, the worst first, then by speed."""
    cells = [CellMove(pair) for pair in common(before.cells, now.cells)]
    return sorted(cells, key=lambda move: (TRENDS.index(move.trend), move.speed.value if move.speed else 0.0))


def middle(values: Sequence[float]) -> float | None:
    """Return the geometric mean of ratios that are given as logarithms; None if there are none."""
    return factor(sum(values) / len(values)) if values else None
