"""`Verdict`: the judgement of one check on one cell; and the exit code of each kind of verdict."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

from bench.base.exitcodes import Exit
from bench.results.cells import Cell
from bench.results.rerun_command import command
from bench.validate.baselines.fingerprint import FieldDifference

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

FAILED: tuple[Name, ...] = ("FAIL", "XFAIL")
"""Verdicts of checks that failed, the latter as expected."""

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
"""Exit codes by verdict. A `FAIL` because a run failed has its own code."""


class CellIdentity(NamedTuple):
    """What identifies a cell in any tree of runs. (Its name only distinguishes it within one tree.)"""

    cell: str
    """Model and label."""
    data: str
    recipe: str
    depth: int | None = None

    @staticmethod
    def of(cell: Cell) -> CellIdentity:
        """Return the identity of `cell`."""
        w = cell.workload
        return CellIdentity(f"{w.model} {cell.label}", w.data, w.recipe, w.depth)


class LevelFigures(NamedTuple):
    """The numbers behind a verdict on a level, in the unit of the values; larger is worse."""

    worse: float
    low: float
    """One-sided bounds at the level of the look; infinite if there are too few seeds."""
    high: float
    margin: float
    seeds: int
    base_seeds: int
    own: bool
    """True: compared with a baseline of its own mode; False: with solo's."""


@dataclass(frozen=True)
class Verdict:
    """The judgement of one check on one cell."""

    name: Name
    check: str
    cell: str
    line: str
    """The measurement, the interval, the margin and the reason; or what to do."""
    exit_code: Exit
    reproduce: str = ""
    """The command that trains the cell again; empty: there is nothing to train."""
    fields: tuple[FieldDifference, ...] = ()
    """The differing fields, if it was refused for them."""
    identity: CellIdentity | None = None
    """Identity of the cell; None: not a cell, or it was refused."""
    figures: LevelFigures | None = None
    """Numbers of a verdict on a level."""
    more: str = ""
    """The command that trains the missing seeds; empty: training would not decide."""
    lacking: int = 0
    """Number of seeds that the command trains."""

    @property
    def why(self) -> str:
        """The line without its commands."""
        return _COMMAND.split(self.line)[0]

    @property
    def text(self) -> str:
        """The line, with the command to reproduce it unless it is a pass."""
        return f"{self.line}; reproduce: {self.reproduce}" if self.reproduce and self.name != "PASS" else self.line

    def __str__(self) -> str:
        return f"{self.name:<14} {self.cell}  {self.check}: {self.text}"


def verdict(name: Name, check: str, cell: Cell, line: str, code: Exit | None = None) -> Verdict:
    """Return a verdict on a cell, with the command for its runs, and with the exit code `code` or that of its kind."""
    code = EXITS[name] if code is None else code
    again = "" if cell.about.source == "predicted" else command(cell.runs)
    return Verdict(name, check, cell.name, line, code, again, identity=CellIdentity.of(cell))


def remark(name: Name, check: str, cell: str, line: str, fields: tuple[FieldDifference, ...] = ()) -> Verdict:
    """Return a verdict on what cannot be judged; it has no command to train again."""
    return Verdict(name, check, cell, line, EXITS[name], fields=fields)
