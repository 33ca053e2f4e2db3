"""Every sample of every epoch of a finished run was trained exactly once, whatever became of its ranks."""

from __future__ import annotations

from bench.base.figures import plural
from bench.results.runfolder import Run
from bench.results.schema import LedgerTotals
from bench.validate.findings import Case
from bench.validate.verdict import Verdict, verdict


def check(case: Case) -> Verdict | None:
    """Return FAIL if the ledger of a finished run is not exactly once; None if none has a ledger."""
    cell = case.cell
    kept = [(run, run.metrics.ledger) for run in cell.runs if run.metrics.status == "ok" and run.metrics.ledger]
    if not kept:
        return None
    for run, ledger in kept:
        if not ledger.exactly_once:
            return verdict("FAIL", "ledger", cell, _amiss(run, ledger))
    epochs = sum(len(ledger.epochs) for _, ledger in kept)
    return verdict("PASS", "ledger", cell, f"every sample of {plural(epochs, 'epoch')} was trained exactly once")


def _amiss(run: Run, ledger: LedgerTotals) -> str:
    """Say which epoch is the first that is wrong, in numbers."""
    m = run.metrics
    for row in ledger.epochs:
        missing = (ledger.samples or 0) - row.samples
        if missing or row.repeated:
            never = f"{plural(missing, 'sample')} never trained, {row.repeated} repeated"
            return f"seed {m.seed}, epoch {row.epoch}: {never}"
    return f"seed {m.seed}: {len(ledger.epochs)} of {m.epochs_planned} epochs trained"
