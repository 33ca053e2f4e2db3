"""The verdict on runs against a baseline. Reads run folders only; imports no torch.

A cell is judged by every check in `bench.validate.checks`, one file each; the baseline file is `bench.validate.baseline`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.cells import cells
from bench.exitcodes import Exit, gravest
from bench.runfolder import find_runs
from bench.validate.baseline import read_baseline, write_baseline
from bench.validate.checks import CHECKS
from bench.validate.verdict import Verdict

__all__ = ["Verdict", "exit_code", "validate", "write_baseline"]


def validate(path: Path, baseline_path: Path) -> list[Verdict]:
    """The verdicts on the runs in `path` (a run folder or a tree), by cell; a folder that cannot be read is REFUSED.

    Raises ValueError if `path` is no folder, or the baseline cannot be read.
    """
    runs, problems = find_runs(path)
    baseline = read_baseline(baseline_path)
    unread = [Verdict("REFUSED", "readable", path.name, problem, Exit.REFUSED) for problem in problems]
    judged = [check(cell, baseline) for cell in cells(runs) for check in CHECKS.values()]
    return [*unread, *(verdict for verdict in judged if verdict is not None)]


def exit_code(verdicts: Sequence[Verdict]) -> int:
    """The gravest of all: a failed run over a regression over a refusal over a pass. Nothing judged is a refusal."""
    return int(gravest(verdict.exit_code for verdict in verdicts)) if verdicts else int(Exit.REFUSED)
