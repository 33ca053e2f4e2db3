"""Every sample of every epoch of a finished run was trained exactly once, whatever became of its ranks."""

from __future__ import annotations

from bench.cells import Cell
from bench.exitcodes import Exit
from bench.reproduce import command
from bench.runfolder import Run
from bench.schema import Ledger
from bench.validate.baseline import Baseline
from bench.validate.verdict import Verdict


def check(cell: Cell, baseline: Baseline) -> Verdict | None:
    """FAIL if the ledger of a finished run is not exactly once; None if none has a ledger."""
    kept = [(run, run.metrics.ledger) for run in cell.runs if run.metrics.status == "ok" and run.metrics.ledger]
    if not kept:
        return None
    wrong = [(run, ledger) for run, ledger in kept if not ledger.exactly_once]
    if wrong:
        line = f"{_amiss(*wrong[0])}; reproduce: {command([run for run, _ in wrong])}"
        return Verdict("FAIL", "ledger", cell.name, line, Exit.REGRESSION)
    epochs = sum(len(ledger.epochs) for _, ledger in kept)
    line = f"every sample of {epochs} epochs was trained exactly once"
    return Verdict("PASS", "ledger", cell.name, line, Exit.OK)


def _amiss(run: Run, ledger: Ledger) -> str:
    """The first epoch that is wrong, in numbers."""
    m = run.metrics
    for row in ledger.epochs:
        missing = (ledger.samples or 0) - row.samples
        if missing or row.repeated:
            return f"seed {m.seed}, epoch {row.epoch}: {missing} samples never trained, {row.repeated} repeated"
    return f"seed {m.seed}: {len(ledger.epochs)} of {m.epochs_planned} epochs trained"
