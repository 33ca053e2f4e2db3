"""What ranks read is every sample once an epoch. The ledger says what was granted; this, what the data set was asked for.

Ranks record a tally of the indices that they asked for (`ddp.tally`); those of all ranks add up to that of every sample,
times epochs. So shards that overlap show, orders that differ between ranks and skipped samples, whatever the books say.
"""

from __future__ import annotations

from bench.base.figures import plural
from bench.results.runfolder import Run
from bench.validate.findings import Case
from bench.validate.records import Records, records
from bench.validate.verdict import Verdict, verdict
from ddp.tally import MODULUS, tally


def check(case: Case) -> Verdict | None:
    """FAIL if other samples were read, or there are more or fewer than the baseline's; None where no tally is recorded."""
    cell, seen = case.cell, 0
    for run in cell.runs:
        known = records(run)
        if known is None or not known.ready or not known.progress or any(e.visited is None for e in known.progress):
            continue
        if wrong := _amiss(case, run, known):
            return verdict("FAIL", "visits", cell, f"seed {run.metrics.seed}: {wrong}")
        seen += run.metrics.epochs_planned
    if not seen:
        return None
    return verdict("PASS", "visits", cell, f"every sample of {plural(seen, 'epoch')} was read exactly once")


def _amiss(case: Case, run: Run, known: Records) -> str:
    samples, epochs = known.ready[0].samples, run.metrics.epochs_planned
    data = case.match.reference.sets if case.match is not None else None
    if data is not None and samples != data.training:
        return f"an epoch has {samples} samples, {data.training} in the baseline"
    read = sum(event.visited or 0 for event in known.progress) % MODULUS
    if read == epochs * tally(range(samples)) % MODULUS:
        return ""
    return f"the data set was asked for other samples than each of {samples} once in {plural(epochs, 'epoch')}"
