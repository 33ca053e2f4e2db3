"""What ranks read is every sample once an epoch. The ledger says what was granted; this, what the data set was asked for.

Ranks record a tally of the indices that they asked for (`ddp.tally`); those of all ranks add up to that of every sample,
times epochs; with `drop_last` or a number of steps, to those that the seed's orders have first. So shards that overlap
show, orders that differ between ranks and skipped samples, whatever the books say. A run that was gone on with is looked at
from there on: it is to read what follows the checkpoint in the orders. Where nobody blocks, a checkpoint within an epoch has
gaps that are not recorded, and nothing is said.
"""

from __future__ import annotations

from math import inf

from bench.base.number_format import plural
from bench.results.runfolder import Run
from bench.validate.findings import UNBLOCKED, Case
from bench.validate.records import recorded
from bench.validate.reference import Sets
from bench.validate.run_records import Records
from bench.validate.verdict import Verdict, verdict
from ddp.permutation import visited
from ddp.tally import MODULUS, tally


def check(case: Case) -> Verdict | None:
    """Return FAIL if other samples were read, or more or fewer than the baseline's; None where no tally is recorded."""
    epochs = 0
    for run, known in recorded(case.cell):
        unknown = not known.ready or not known.progress or any(e.visited is None for e in known.progress)
        if unknown or not _shuffled(known) or not is_beginning(run, known):
            continue
        if wrong := amiss(case.sets, run, known):
            return verdict("FAIL", "visits", case.cell, f"seed {run.metrics.seed}: {wrong}")
        epochs += run.metrics.epochs_planned - _seen(known)[0]
    line = f"every sample of {plural(epochs, 'epoch')} was read exactly once"
    return verdict("PASS", "visits", case.cell, line) if epochs else None


def _shuffled(known: Records) -> bool:
    """Return whether samples come in the seed's orders. Which ones a sampler of a user's own takes is not known."""
    data = known.ready[0].data
    return data is None or data.shuffled


def _seen(known: Records) -> tuple[int, int]:
    """Return what a run that was gone on with began with: complete epochs, and samples of the one after them."""
    if not known.resumed:
        return 0, 0
    last = known.resumed[-1]
    return last.epochs, last.samples - last.epochs * known.ready[0].samples


def is_beginning(run: Run, known: Records) -> bool:
    """Return whether what the run began with is a beginning of the seed's orders: where nobody waits, it has gaps."""
    return not _seen(known)[1] or run.metrics.backend != UNBLOCKED


def _wanted(run: Run, known: Records) -> int:
    """Return the tally of what is to be read: every sample of each epoch, but for those that an order leaves at its end, and
    those that were trained before the run was gone on with."""
    samples, epochs, data = known.ready[0].samples, run.metrics.epochs_planned, known.ready[0].data
    total = samples if data is None else data.training.samples
    first, seen = _seen(known)
    if total == samples:
        wanted = (epochs - first) * tally(range(samples))
    else:
        wanted = sum(tally(visited(run.metrics.seed, epoch, total, samples)) for epoch in range(first, epochs))
    return wanted - (tally(visited(run.metrics.seed, first, total, samples)[:seen]) if seen else 0)


def amiss(sets: Sets | None, run: Run, known: Records) -> str:
    """Say what was read that is not to be read, or the other way round; empty: nothing."""
    samples, epochs = known.ready[0].samples, run.metrics.epochs_planned
    if sets is not None and samples != sets.training:
        return f"an epoch has {samples} samples, {sets.training} in the baseline"
    began = known.resumed[-1].at if known.resumed else -inf
    read = sum(event.visited or 0 for event in known.progress if event.at > began) % MODULUS
    if read == _wanted(run, known) % MODULUS:
        return ""
    return f"the data set was asked for other samples than each of {samples} once in {plural(epochs, 'epoch')}"
