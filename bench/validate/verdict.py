"""`Verdict`: what one check says of one cell; and what each kind of verdict means for the exit code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

from bench.base.exitcodes import Exit
from bench.results.cells import Cell
from bench.results.rerun_command import command
from bench.validate.fingerprint import FieldDifference

Name = Literal[
    "PASS",
    "FAIL",
    "INCONCLUSIVE",
    "SUSPICIOUS",
    "VARIANCE_SHIFT",
    "REFUSED",
    "EXPIRED",
    "NO_BASELINE",
    "XFAIL",
    "XPASS",
]

_COMMAND = re.compile(r"[:;]? (?:make one: )?python -m bench ")

EXITS: dict[Name, Exit] = {
    "PASS": Exit.OK,
    "FAIL": Exit.REGRESSION,
    "INCONCLUSIVE": Exit.INCONCLUSIVE,
    "SUSPICIOUS": Exit.INCONCLUSIVE,
    "VARIANCE_SHIFT": Exit.INCONCLUSIVE,
    "REFUSED": Exit.REFUSED,
    "EXPIRED": Exit.REFUSED,
    "NO_BASELINE": Exit.REFUSED,
    "XFAIL": Exit.OK,
    "XPASS": Exit.OK,
}
"""A `FAIL` because a run failed has a code of its own."""


class CellIdentity(NamedTuple):
    """What a cell is called in whatever tree it stands. (Its name says only what tells it apart in one.)"""

    cell: str
    """Model and label."""
    data: str
    recipe: str
    depth: int | None = None

    @staticmethod
    def of(cell: Cell) -> CellIdentity:
        """Return that of `cell`."""
        w = cell.workload
        return CellIdentity(f"{w.model} {cell.label}", w.data, w.recipe, w.depth)


class LevelFigures(NamedTuple):
    """What a verdict on a level goes by, for whoever shows it again; unit of the values, larger is worse."""

    worse: float
    low: float
    """One-sided bounds at the level of the look; infinite where so few seeds set none."""
    high: float
    margin: float
    seeds: int
    base_seeds: int
    own: bool
    """Against the cell's own baseline, else solo's."""


@dataclass(frozen=True)
class Verdict:
    """What one check says of one cell."""

    name: Name
    check: str
    cell: str
    line: str
    """What was measured, the interval, the margin and why; or what to do."""
    exit_code: Exit
    reproduce: str = ""
    """The command that trains the cell again; empty: there is nothing to train."""
    fields: tuple[FieldDifference, ...] = ()
    """What differs, where it was refused for that."""
    identity: CellIdentity | None = None
    """Of the cell; None: what is judged is no cell, or was refused."""
    figures: LevelFigures | None = None
    """Of a level."""
    more: str = ""
    """The command that trains what a decision lacks; empty: no training decides."""
    lacking: int = 0
    """Seeds that the command trains of the cell."""

    @property
    def why(self) -> str:
        """The line without the commands in it."""
        return _COMMAND.split(self.line)[0]

    @property
    def text(self) -> str:
        """The line, with its command unless all is well."""
        return f"{self.line}; reproduce: {self.reproduce}" if self.reproduce and self.name != "PASS" else self.line

    def __str__(self) -> str:
        return f"{self.name:<14} {self.cell}  {self.check}: {self.text}"


def verdict(name: Name, check: str, cell: Cell, line: str, code: Exit | None = None) -> Verdict:
    """Return a verdict on a cell, with the command for its runs and the exit code of its kind, or that of a failed run."""
    code = EXITS[name] if code is None else code
    return Verdict(name, check, cell.name, line, code, command(cell.runs), identity=CellIdentity.of(cell))


def remark(name: Name, check: str, cell: str, line: str, fields: tuple[FieldDifference, ...] = ()) -> Verdict:
    """Return a verdict on what cannot be judged, so that there is nothing to train again."""
    return Verdict(name, check, cell, line, EXITS[name], fields=fields)
