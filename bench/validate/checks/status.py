"""Every run of the cell ended `ok`."""

from __future__ import annotations

from bench.cells import Cell
from bench.exitcodes import Exit
from bench.reproduce import command
from bench.validate.baseline import Baseline
from bench.validate.verdict import Verdict


def check(cell: Cell, baseline: Baseline) -> Verdict:
    """FAIL if a run did not end well: a regression if it diverged, else a failed run."""
    name = cell.name
    bad = [run for run in cell.runs if run.metrics.status != "ok"]
    if not bad:
        return Verdict("PASS", "status", name, cell.status, Exit.OK)
    first = bad[0].metrics
    diverged = all(run.metrics.status == "diverged" for run in bad)
    line = f"{cell.status}; seed {first.seed}: {first.error or 'no reason recorded'}; reproduce: {command(bad)}"
    return Verdict("FAIL", "status", name, line, Exit.REGRESSION if diverged else Exit.FAILED)
