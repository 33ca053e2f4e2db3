"""Every run of the cell ended `ok`; of those that diverged `diverged` says whether they are too many, where it can."""

from __future__ import annotations

from bench.base.exitcodes import Exit
from bench.results.analysis.faults import raised
from bench.results.cells import Cell
from bench.results.schema import Metrics
from bench.validate.findings import Case
from bench.validate.verdict import Verdict, verdict


def check(case: Case) -> Verdict:
    """Return FAIL if a run did not end well: a regression if it diverged, and nothing else counts that; else a failed run.
    One that went on without a rank that it had lost ended well, and is judged as any other; the line says so, and begins
    with it if the rank had raised. FAIL too if a rank was given up because it did not do as ordered."""
    cell = case.cell
    counted = ("ok", "diverged") if case.match is not None else ("ok",)
    bad = [run.metrics for run in cell.runs if run.metrics.status not in counted]
    if not bad and (contradicts := next(filter(None, map(_contradicts, cell.bereft)), "")):
        return verdict("FAIL", "status", cell, f"{cell.status}; {contradicts}", Exit.FAILED)
    if not bad:
        errors = "".join(f"seed {m.seed}: {line}; " for m in cell.bereft for line in raised(m.faults))
        return verdict("PASS", "status", cell, f"{errors}{cell.status}{_losses(cell)}")
    diverged = all(metrics.status == "diverged" for metrics in bad)
    line = f"{cell.status}; seed {bad[0].seed}: {bad[0].error or 'no reason recorded'}"
    return verdict("FAIL", "status", cell, line, Exit.REGRESSION if diverged else Exit.FAILED)


def _contradicts(m: Metrics) -> str:
    """Say which rank was given up for reports that do not fit its orders, as no machine makes them; else nothing. Not of a
    run that had lost a rank before, or was to lose something, nor of a rank that came later."""
    first = next(fault for fault in m.faults if fault.rank is not None)
    if first.kind != "dropped" or m.scripted_faults or first.rank in m.late:
        return ""
    return f"seed {m.seed}: rank {first.rank} did not do as ordered, and was given up: {first.text:.200}"


def _losses(cell: Cell) -> str:
    losses = [
        f"seed {m.seed} lost rank {fault.rank} ({fault.text}) and {fault.action}"
        for m in cell.bereft
        for fault in m.faults
        if fault.rank is not None
    ]
    return "".join(f"; {loss}" for loss in losses)
