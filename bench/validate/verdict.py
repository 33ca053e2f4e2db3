"""`Verdict`: what one check says of one cell; and what each kind of verdict means for the exit code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bench.cells import Cell
from bench.exitcodes import Exit
from bench.reproduce import command
from bench.validate.fingerprint import Difference

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
    fields: tuple[Difference, ...] = ()
    """What differs, where it was refused for that."""

    @property
    def told(self) -> str:
        """The line with its command."""
        return f"{self.line}; reproduce: {self.reproduce}" if self.reproduce else self.line

    def __str__(self) -> str:
        return f"{self.name:<14} {self.cell}  {self.check}: {self.told}"


def verdict(name: Name, check: str, cell: Cell, line: str, code: Exit | None = None) -> Verdict:
    """On a cell, with the command for its runs and the exit code of its kind (a `FAIL` because a run failed: its own)."""
    return Verdict(name, check, cell.name, line, EXITS[name] if code is None else code, command(cell.runs))
