"""What ranks read is every sample once an epoch. The ledger says what was granted; this, what the data set was asked for.

Ranks record a tally of the indices that they asked for (`ddp.tally`); those of all ranks add up to that of every sample,
times epochs. So shards that overlap show, orders that differ between ranks and skipped samples, whatever the books say. Of a
run that was gone on with nothing is said: it reads again what it had read ahead.
"""

from __future__ import annotations

from bench.base.figures import plural
from bench.results.runfolder import Run
from bench.validate.findings import Case
from bench.validate.records import Records, recorded
from bench.validate.reference import Sets
from bench.validate.verdict import Verdict, verdict
from ddp.tally import MODULUS, tally


def check(case: Case) -> Verdict | None:
    """Return FAIL if other samples were read, or more or fewer than the baseline's; None where no tally is recorded."""
    epochs = 0
    for run, known in recorded(case.cell):
        unknown = not known.ready or not known.progress or any(e.visited is None for e in known.progress)
        if unknown or known.resumed:
            continue
        if wrong := _amiss(case.sets, run, known):
            return verdict("FAIL", "visits", case.cell, f"seed {run.metrics.seed}: {wrong}")
        epochs += run.metrics.epochs_planned
    line = f"every sample of {plural(epochs, 'epoch')} was read exactly once"
    return verdict("PASS", "visits", case.cell, line) if epochs else None


def _amiss(sets: Sets | None, run: Run, known: Records) -> str:
    samples, epochs = known.ready[0].samples, run.metrics.epochs_planned
    if sets is not None and samples != sets.training:
        return f"an epoch has {samples} samples, {sets.training} in the baseline"
    read = sum(event.visited or 0 for event in known.progress) % MODULUS
    if read == epochs * tally(range(samples)) % MODULUS:
        return ""
    return f"the data set was asked for other samples than each of {samples} once in {plural(epochs, 'epoch')}"
