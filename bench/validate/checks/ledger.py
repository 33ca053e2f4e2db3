"""Every sample of every epoch of a finished run was trained exactly once, whatever became of its ranks, in batches of the
size that is set."""

from __future__ import annotations

from bench.base.figures import plural
from bench.results.runfolder import Run
from bench.results.schema import LedgerTotals
from bench.validate.findings import Case
from bench.validate.records import Records, recorded
from bench.validate.verdict import Verdict, verdict

LARGER = 1.25
"""Times what batches are, that the size may be which is set: each epoch ends in smaller ones."""


def check(case: Case) -> Verdict | None:
    """Return FAIL if the ledger of a finished run is not exactly once; None if none has a ledger."""
    cell = case.cell
    kept = [(run, run.metrics.ledger) for run in cell.runs if run.metrics.status == "ok" and run.metrics.ledger]
    if not kept:
        return None
    for run, ledger in kept:
        if not ledger.exactly_once:
            return verdict("FAIL", "ledger", cell, _amiss(run, ledger))
    for run, known in recorded(cell):
        if wrong := _batches(run, known):
            return verdict("FAIL", "ledger", cell, f"seed {run.metrics.seed}: {wrong}")
    epochs = sum(len(ledger.epochs) for _, ledger in kept)
    return verdict("PASS", "ledger", cell, f"every sample of {plural(epochs, 'epoch')} was trained exactly once")


def _batches(run: Run, known: Records) -> str:
    """Say which rank trained other batches than are set. Where shares follow speeds, those of all ranks together count."""
    m, together = run.metrics, run.metrics.engine == "graph"
    most = m.batch_size + max((event.least for event in known.ready), default=1)
    steps = sum(event.steps for event in known.progress)
    samples = sum(event.samples for event in known.progress)
    for event in () if together else known.progress:
        if event.samples > event.steps * most:
            size = event.samples / event.steps
            return f"rank {event.rank} trained batches of {size:.3g} samples in epoch {event.epoch}, {m.batch_size} are set"
    if steps * m.batch_size > LARGER * samples + 2 * m.epochs_planned * m.world_size * m.batch_size:
        return f"batches of {samples / steps:.3g} samples were trained, {m.batch_size} are set"
    return ""


def _amiss(run: Run, ledger: LedgerTotals) -> str:
    """Say which epoch is the first that is wrong, in numbers."""
    m = run.metrics
    for row in ledger.epochs:
        missing = (ledger.samples or 0) - row.samples
        if missing or row.repeated:
            never = f"{plural(missing, 'sample')} never trained, {row.repeated} repeated"
            return f"seed {m.seed}, epoch {row.epoch}: {never}"
    return f"seed {m.seed}: {len(ledger.epochs)} of {m.epochs_planned} epochs trained"
