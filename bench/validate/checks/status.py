"""Every run of the cell ended `ok`."""

from __future__ import annotations

from bench.cells import Cell
from bench.exitcodes import Exit
from bench.reproduce import command
from bench.validate.baseline import Baseline
from bench.validate.verdict import Verdict


def check(cell: Cell, baseline: Baseline) -> Verdict:
    """FAIL if a run did not end well: a regression if it diverged, else a failed run. One that went on without a rank that
    it had lost ended well, and is judged as any other; the line says so."""
    name = cell.name
    bad = [run for run in cell.runs if run.metrics.status != "ok"]
    if not bad:
        return Verdict("PASS", "status", name, f"{cell.status}{_losses(cell)}", Exit.OK)
    first = bad[0].metrics
    diverged = all(run.metrics.status == "diverged" for run in bad)
    line = f"{cell.status}; seed {first.seed}: {first.error or 'no reason recorded'}; reproduce: {command(bad)}"
    return Verdict("FAIL", "status", name, line, Exit.REGRESSION if diverged else Exit.FAILED)


def _losses(cell: Cell) -> str:
    told = [
        f"seed {m.seed} lost rank {fault.rank} ({fault.text}) and {fault.action}"
        for m in cell.bereft
        for fault in m.faults
        if fault.rank is not None
    ]
    return f"; {'; '.join(told)}" if told else ""
