"""What ranks read is every sample once an epoch. The ledger says what was granted; this, what the data set was asked for.

Ranks record a tally of the indices that they asked for (`ddp.tally`); those of all ranks add up to that of every sample,
times epochs; with `drop_last` or a number of steps, to those that the seed's orders have first. So shards that overlap
show, orders that differ between ranks and skipped samples, whatever the books say. Of a run that was gone on with nothing
is said: it reads again what it had read ahead.
"""

from __future__ import annotations

from bench.base.figures import plural
from bench.results.runfolder import Run
from bench.validate.findings import Case
from bench.validate.records import Records, recorded
from bench.validate.reference import Sets
from bench.validate.verdict import Verdict, verdict
from ddp.permutation import visited
from ddp.tally import MODULUS, tally


def check(case: Case) -> Verdict | None:
    """Return FAIL if other samples were read, or more or fewer than the baseline's; None where no tally is recorded."""
    epochs = 0
    for run, known in recorded(case.cell):
        unknown = not known.ready or not known.progress or any(e.visited is None for e in known.progress)
        if unknown or known.resumed or not _shuffled(known):
            continue
        if wrong := _amiss(case.sets, run, known):
            return verdict("FAIL", "visits", case.cell, f"seed {run.metrics.seed}: {wrong}")
        epochs += run.metrics.epochs_planned
    line = f"every sample of {plural(epochs, 'epoch')} was read exactly once"
    return verdict("PASS", "visits", case.cell, line) if epochs else None


def _shuffled(known: Records) -> bool:
    """Return whether samples come in the seed's orders. Which ones a sampler of a user's own takes is not known."""
    data = known.ready[0].data
    return data is None or data.shuffled


def _wanted(run: Run, known: Records) -> int:
    """Return the tally of what all epochs are to read: every sample, but for those that an order leaves at its end."""
    samples, epochs, data = known.ready[0].samples, run.metrics.epochs_planned, known.ready[0].data
    if data is None or data.training.samples == samples:
        return epochs * tally(range(samples))
    orders = (visited(run.metrics.seed, epoch, data.training.samples, samples) for epoch in range(epochs))
    return sum(tally(order) for order in orders)


def _amiss(sets: Sets | None, run: Run, known: Records) -> str:
    samples, epochs = known.ready[0].samples, run.metrics.epochs_planned
    if sets is not None and samples != sets.training:
        return f"an epoch has {samples} samples, {sets.training} in the baseline"
    read = sum(event.visited or 0 for event in known.progress) % MODULUS
    if read == _wanted(run, known) % MODULUS:
        return ""
    return f"the data set was asked for other samples than each of {samples} once in {plural(epochs, 'epoch')}"
