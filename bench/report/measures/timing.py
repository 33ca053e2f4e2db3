"""Selects the runs that a cell's times come from: those that no other program disturbed, if there are enough. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from bench.results.cells import Cell, Sample
from bench.results.schema import Metrics
from bench.validate.checks.speed import disturbed

ENOUGH = 2
"""Undisturbed seeds that suffice to leave out the disturbed runs."""


@dataclass(frozen=True)
class Timing:
    """The runs of a cell that its times come from, one for each seed."""

    runs: tuple[Metrics, ...]
    disturbed: bool
    """Whether other programs used the cores of some of them."""

    @staticmethod
    def of(cell: Cell) -> Timing:
        """Return the undisturbed runs, if there are `ENOUGH` or nothing was disturbed; else all."""
        runs = [run.metrics for run in cell.counted if run.metrics.status != "killed" and run.metrics.timing]
        quiet = [m for m in runs if not disturbed(m)]
        if len(quiet) >= ENOUGH or len(quiet) == len(runs):
            return Timing(tuple(quiet), disturbed=False)
        return Timing(tuple(runs), disturbed=True)

    @property
    def seconds(self) -> list[float | None]:
        """Seconds to the target, by run; None: the run missed it."""
        return [m.target.seconds if m.target.reached else None for m in self.runs]

    @property
    def speeds(self) -> list[float | None]:
        """Samples per second of the runs that finished."""
        return [m.throughput.samples_per_s for m in self.runs if m.status == "ok"]

    @property
    def speed(self) -> Sample:
        """Samples per second over these runs."""
        return Sample.of(self.speeds)
