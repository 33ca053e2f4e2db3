"""`Verdict`: what one check says of one cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bench.exitcodes import Exit


@dataclass(frozen=True)
class Verdict:
    """What one check says of one cell."""

    name: Literal["PASS", "FAIL", "NO_BASELINE", "REFUSED"]
    check: str
    cell: str
    line: str
    """One clear line: what was measured, the baseline, the margin and why; unless passed, the command to reproduce."""
    exit_code: Exit

    def __str__(self) -> str:
        return f"{self.name:<11} {self.cell}  {self.check}: {self.line}"
