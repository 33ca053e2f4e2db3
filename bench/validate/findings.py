"""What checks hand over: a verdict, where a cell decides it alone; else a claim that the family of all cells decides.

A claim has its p-values and says everything but the verdict. Knows no levels: `bench.validate.family` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.results.cells import Cell
from bench.validate.library import Match
from bench.validate.reference import Reference, Sets
from bench.validate.statistics import Comparison
from bench.validate.verdict import Verdict


@dataclass(frozen=True)
class Case:
    """A cell and what it is compared with; None where there is nothing comparable."""

    cell: Cell
    match: Match | None
    allowed: tuple[str, ...] = ()
    """Fields in which runs may differ from their baseline."""

    @property
    def own(self) -> Reference | None:
        """The baseline of this very cell; None if it is compared with another one's, or with nothing."""
        return self.match.reference if self.match is not None and self.match.own else None

    @property
    def sets(self) -> Sets | None:
        """What the baseline was trained and evaluated on; None: nothing says it."""
        return self.match.reference.sets if self.match is not None else None


@dataclass(frozen=True)
class LevelClaim:
    """A mean against the baseline's, with a margin."""

    check: str
    case: Case
    what: str
    """`accuracy 0.9840 ± 0.0030 (n=3), solo 0.9890 ± 0.0020 (n=20)`."""
    comparison: Comparison
    seeds: int
    """That were looked at."""
    margin: float
    margin_why: str
    ratio: float
    """Margin in standard deviations of the baseline."""
    show: Callable[[float], str]
    """A difference, for people."""
    censored: int = 0
    """Seeds without a value: they never came so far, so the cell cannot pass."""
    only_proved: bool = False
    """Fails only where it is proved, and better is no reason to look: of what depends on the machine's day."""


@dataclass(frozen=True)
class Spread:
    """A variance against the baseline's."""

    check: str
    case: Case
    what: str
    p: float
    """Small: it is larger."""


@dataclass(frozen=True)
class Rate:
    """How many seeds did what nearly all should."""

    check: str
    case: Case
    what: str
    p: float
    """Small: too few."""
    enough: bool
    """As many as one may expect."""


Finding = Verdict | LevelClaim | Spread | Rate
