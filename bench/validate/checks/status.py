"""Every run of the cell ended `ok`; of those that diverged `diverged` says whether they are too many, where it can."""

from __future__ import annotations

from bench.base.exitcodes import Exit
from bench.results.analysis.faults import unscripted
from bench.results.cells import Cell
from bench.validate.findings import Case
from bench.validate.verdict import Verdict, verdict


def check(case: Case) -> Verdict:
    """Return FAIL if a run did not end well: a regression if it diverged, and nothing else counts that; else a failed run.
    One that went on without a rank that it had lost ended well, and is judged as any other; the line says so. But where the
    rank had raised, and no script made it, the program has a defect, which the others' luck does not mend."""
    cell = case.cell
    counted = ("ok", "diverged") if case.match is not None else ("ok",)
    bad = [run.metrics for run in cell.runs if run.metrics.status not in counted]
    if not bad:
        errors = "".join(f"seed {m.seed}: {line}; " for m in cell.bereft for line in unscripted(m))
        line = f"{errors}{cell.status}{_losses(cell)}"
        return verdict("FAIL" if errors else "PASS", "status", cell, line, Exit.FAILED if errors else None)
    diverged = all(metrics.status == "diverged" for metrics in bad)
    line = f"{cell.status}; seed {bad[0].seed}: {bad[0].error or 'no reason recorded'}"
    return verdict("FAIL", "status", cell, line, Exit.REGRESSION if diverged else Exit.FAILED)


def _losses(cell: Cell) -> str:
    losses = [
        f"seed {m.seed} lost rank {fault.rank} ({fault.text}) and {fault.action}"
        for m in cell.bereft
        for fault in m.faults
        if fault.rank is not None
    ]
    return "".join(f"; {loss}" for loss in losses)
