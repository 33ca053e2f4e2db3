"""The verdict on runs against a baseline. Reads run folders only; imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Verdict:
    """What one check says of one cell."""

    name: Literal["PASS", "FAIL", "NO_BASELINE", "REFUSED"]
    check: str
    cell: str
    line: str
    """One clear line: what was measured, the baseline, the margin and why, the command to reproduce."""
    exit_code: int
    """0 pass, 1 regression, 4 refused or no baseline, 5 the run failed."""


def validate(path: Path, baseline_path: Path) -> list[Verdict]:
    """The verdicts on the runs in `path`. Raises ValueError if `path` is no folder or the baseline is malformed."""
    raise NotImplementedError


def exit_code(verdicts: Sequence[Verdict]) -> int:
    """The worst of all: 5 over 1 over 4 over 0."""
    raise NotImplementedError


def write_baseline(runs: Path, out: Path, *, created: str) -> list[str]:
    """Write (or extend) the baseline file `out` from the solo runs in `runs`; one line for each workload written.

    `created` is the date for the record (ISO). Raises ValueError if a workload has fewer than five seeds.
    """
    raise NotImplementedError
