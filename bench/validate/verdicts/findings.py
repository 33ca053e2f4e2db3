"""What checks return: a verdict, if one cell is enough to decide; else a claim, which
`bench.validate.verdicts.decision` decides for all cells together.

A claim has its p-values and its text, but no level and no verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from bench.results.cells import Cell
from bench.results.runfolder import Run
from bench.validate.baselines.folder import Match
from bench.validate.baselines.reference import Reference, Sets
from bench.validate.evidence.derivation import ANEW, Derivation
from bench.validate.statistics.rank_tests import Shift
from bench.validate.statistics.significance import Comparison
from bench.validate.verdicts.verdict import Verdict, verdict

T = TypeVar("T")


@dataclass(frozen=True)
class Case:
    """A cell and the reference that it is compared with; None if nothing is comparable."""

    cell: Cell
    match: Match | None
    allowed: tuple[str, ...] = ()
    """Fields in which runs may differ from their baseline."""
    beside: tuple[Cell, ...] = ()
    """Solo cells that are judged at the same time."""
    derivation: Derivation = ANEW

    def each(self, function: Callable[..., T], *more: Any, lost: bool = False) -> Iterator[tuple[Run, T]]:
        """Iterate over the runs of the cell that have records, each with the value of `Derivation.value`."""
        for run in self.cell.runs:
            value = self.derivation.value(function, run, *more, lost=lost)
            if value is not None:
                yield run, value

    def failure(self, check: str, function: Callable[..., str], *more: Any, lost: bool = False) -> Verdict | None:
        """Return FAIL for the first run of which `function` says what is wrong; None: of none."""
        for run, wrong in self.each(function, *more, lost=lost):
            if wrong:
                return verdict("FAIL", check, self.cell, f"seed {run.metrics.seed}: {wrong}")
        return None

    def compared(
        self, check: str, function: Callable[..., tuple[str, int]], *more: Any, lost: bool = False, mark: str = ":"
    ) -> tuple[Verdict | None, int]:
        """Return FAIL for the first run of which `function` says what is wrong, or None; and how much was compared before
        it, by the counts of `function`. `mark`: what follows the seed."""
        count = 0
        for run, (wrong, some) in self.each(function, *more, lost=lost):
            if wrong:
                return verdict("FAIL", check, self.cell, f"seed {run.metrics.seed}{mark} {wrong}"), count
            count += some
        return None, count

    @property
    def own(self) -> Reference | None:
        """The baseline of this very cell; None if it is compared with another one's, or with nothing."""
        return self.match.reference if self.match is not None and self.match.own else None

    @property
    def sets(self) -> Sets | None:
        """The data sets of the baseline; None: not recorded."""
        return self.match.reference.sets if self.match is not None else None


@dataclass(frozen=True)
class LevelClaim:
    """Values of the seeds against the baseline's, with a margin."""

    check: str
    case: Case
    what: str
    """`accuracy 0.9840 ± 0.0030 (n=3), solo 0.9890 ± 0.0020 (n=20)`."""
    comparison: Shift | Comparison
    seeds: int
    """Number of seeds looked at, finished or diverged."""
    base_seeds: int
    margin: float
    margin_why: str
    power: float
    """The chance that an equal cell passes at the last look."""
    detectable: float
    """The smallest loss that would not pass at this look with probability 0.9; NaN: too few seeds to pass anything."""
    show: Callable[[float], str]
    """Formats a difference."""
    note: str = ""
    """Text that a pass must not omit."""
    aside: str = ""
    """Text on values that are not judged."""
    only_proved: bool = False
    """Fails only if a loss is proved, and better values need no explanation: for measurements that vary with the
    machine."""


@dataclass(frozen=True)
class Spread:
    """How far the values of the seeds lie apart, compared with the baseline's."""

    check: str
    case: Case
    what: str
    p: float
    """Small: farther apart than the baseline's."""


@dataclass(frozen=True)
class Rate:
    """How many seeds have a property that few of the baseline's have."""

    check: str
    case: Case
    what: str
    p: float
    """Small: more seeds than in the baseline."""
    expected: bool
    """No seed has it, or no more than the baseline's rate explains."""


Finding = Verdict | LevelClaim | Spread | Rate
