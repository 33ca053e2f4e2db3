"""What checks hand over: a verdict, where a cell decides it alone; else a claim that the family of all cells decides.

A claim has its p-values and says everything but the verdict. Knows no levels: `bench.validate.decision` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.results.cells import Cell
from bench.validate.library import Match
from bench.validate.ranks import Shift
from bench.validate.reference import Reference, Sets
from bench.validate.statistics import Comparison
from bench.validate.verdict import Verdict

UNBLOCKED = "cpu"
"""The backend on which no rank waits for another."""


@dataclass(frozen=True)
class Case:
    """A cell and what it is compared with; None where there is nothing comparable."""

    cell: Cell
    match: Match | None
    allowed: tuple[str, ...] = ()
    """Fields in which runs may differ from their baseline."""
    beside: tuple[Cell, ...] = ()
    """Cells of one device that are judged with it."""

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
    """Values against the baseline's, with a margin."""

    check: str
    case: Case
    what: str
    """`accuracy 0.9840 ± 0.0030 (n=3), solo 0.9890 ± 0.0020 (n=20)`."""
    comparison: Shift | Comparison
    seeds: int
    """That were looked at, finished or diverged."""
    base_seeds: int
    margin: float
    margin_why: str
    power: float
    """The chance that an equal cell passes at the last look."""
    detectable: float
    """The smallest loss that would not pass at this look with probability 0.9; NaN: too few seeds to pass anything."""
    show: Callable[[float], str]
    """A difference, for people."""
    note: str = ""
    """What a pass must not keep quiet."""
    aside: str = ""
    """What is mentioned and not judged."""
    only_proved: bool = False
    """Fails only where it is proved, and better is no reason to look: of what depends on the machine's day."""


@dataclass(frozen=True)
class Spread:
    """How far values lie apart, against the baseline's."""

    check: str
    case: Case
    what: str
    p: float
    """Small: farther."""


@dataclass(frozen=True)
class Rate:
    """How many seeds did what hardly any of the baseline's did."""

    check: str
    case: Case
    what: str
    p: float
    """Small: more of them do."""
    expected: bool
    """None did, or no more than the baseline's rate lets expect."""


Finding = Verdict | LevelClaim | Spread | Rate
