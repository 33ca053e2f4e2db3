"""The progress of a sweep, and the time that the rest will take. Pure but for a clock; knows neither runs nor
folders."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table

from bench.runner.live_view import duration

BAR = 30
"""Characters of the bar."""


@dataclass
class SweepProgress:
    """The runs of a sweep, in their order."""

    clock: Callable[[], float] = time.monotonic
    """Monotonic clock, seconds."""
    points: list[tuple[str, ...]] = field(default_factory=list)
    """The overrides of every run."""
    begun: int = 0
    """Runs that are over, were skipped or are under way."""
    over: int = 0
    """Runs that are over or were skipped."""
    _trained: list[float] = field(default_factory=list)
    """Seconds of each run that was trained and is over."""
    _since: float = 0.0

    def foresee(self, overrides: Sequence[str]) -> None:
        """Add a run to the planned ones."""
        self.points.append(tuple(overrides))

    def begin(self) -> None:
        """Note that the next run begins."""
        self.begun, self._since = self.begun + 1, self.clock()

    def end(self, trained: bool) -> None:
        """Note that the current run is over. `trained`: whether it trained, or was skipped."""
        self.over += 1
        if trained:
            self._trained.append(self.clock() - self._since)

    @property
    def place(self) -> str:
        """Number of the current cell out of all; also of the run, if cells have several runs."""
        kinds = [tuple(word for word in point if not word.startswith("seed=")) for point in self.points]
        order = list(dict.fromkeys(kinds))
        current = min(max(self.begun, 1), len(kinds)) - 1
        cell = f"cell {order.index(kinds[current]) + 1} of {len(order)}"
        return cell if len(order) == len(kinds) else f"{cell}, run {current + 1} of {len(kinds)}"

    def left(self, run_left: float | None) -> float | None:
        """Return the estimated seconds until the sweep ends, given those of the current run; None if nothing is known
        yet. Assumes that the remaining runs take as long as the finished ones on average, and that the same share is
        skipped."""
        elapsed = self.clock() - self._since
        if not self._trained and run_left is None:
            return None
        each = fmean(self._trained) if self._trained else elapsed + (run_left or 0.0)
        over = self.begun - 1
        share = len(self._trained) / over if self._trained and over else 1.0
        current = max(each - elapsed, 0.0) if run_left is None else run_left
        return current + max(len(self.points) - self.begun, 0) * share * each

    @property
    def each(self) -> float | None:
        """Return the mean seconds of a run, skipped runs included; None if nothing is known yet."""
        return sum(self._trained) / self.over if self._trained and self.over else None

    def view(self, run_left: float | None) -> RenderableType:
        """Draw the sweep on one line."""
        left = self.left(run_left)
        elapsed = self.clock() - self._since
        part = 0.0 if run_left is None or elapsed + run_left <= 0 else elapsed / (elapsed + run_left)
        line = Table.grid(padding=(0, 2))
        bar = ProgressBar(len(self.points), self.begun - 1 + part, width=BAR)
        line.add_row(f"sweep: {self.place}", bar, "" if left is None else f"{duration(left)} left")
        return line
