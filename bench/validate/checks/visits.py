"""Ranks read every sample once per epoch. `ledger` checks which samples were granted; this check, which were requested.

Ranks record a tally of the indices that they request from the data set (`ddp.tally`). The sum over all ranks must equal
the tally of every sample, times epochs, exactly; with `drop_last` or a number of steps, the tally of the first samples
of the seed's orders. This finds overlapping shards, orders that differ between ranks, and skipped samples. A resumed
run must read what follows the checkpoint in the orders. With a non-blocking backend, a checkpoint within an epoch has
gaps that are not recorded, so the check is silent.
"""

from __future__ import annotations

from math import inf

from bench.base.number_format import plural
from bench.results.runfolder import Run
from bench.validate.baselines.reference import Sets
from bench.validate.records.run_records import UNBLOCKED, Records
from bench.validate.verdicts.findings import Case
from bench.validate.verdicts.verdict import Verdict, verdict
from ddp.permutation import visited
from ddp.tally import MODULUS, tally


def check(case: Case) -> Verdict | None:
    """Return FAIL if other samples were read, or another number than in the baseline; None if no tally is recorded."""
    failure, epochs = case.compared("visits", _compared, case.sets)
    if failure or not epochs:
        return failure
    return verdict("PASS", "visits", case.cell, f"every sample of {plural(epochs, 'epoch')} was read exactly once")


def _compared(run: Run, known: Records, sets: Sets | None) -> tuple[str, int]:
    """Return how the samples read differ from those that are due (empty: not), and the number of epochs compared."""
    unknown = not known.ready or not known.progress or any(e.visited is None for e in known.progress)
    if unknown or not _shuffled(known) or not is_beginning(run, known):
        return "", 0
    return amiss(sets, run, known), run.metrics.epochs_planned - _seen(known)[0]


def _shuffled(known: Records) -> bool:
    """Return whether samples come in the seed's orders. The choice of a custom sampler is not known."""
    data = known.ready[0].data
    return data is None or data.shuffled


def _seen(known: Records) -> tuple[int, int]:
    """Return where a resumed run began: complete epochs, and samples of the next one."""
    if not known.resumed:
        return 0, 0
    last = known.resumed[-1]
    return last.epochs, last.samples - last.epochs * known.ready[0].samples


def is_beginning(run: Run, known: Records) -> bool:
    """Return whether the run began with a prefix of the seed's order; with a non-blocking backend it may have gaps."""
    return not _seen(known)[1] or run.metrics.backend != UNBLOCKED


def _wanted(run: Run, known: Records) -> int:
    """Return the tally that is due: every sample of each epoch, less those that the order drops at its end, and those
    that were trained before the run was resumed."""
    samples, epochs, data = known.ready[0].samples, run.metrics.epochs_planned, known.ready[0].data
    total = samples if data is None else data.training.samples
    first, seen = _seen(known)
    if total == samples:
        wanted = (epochs - first) * tally(range(samples))
    else:
        wanted = sum(tally(visited(run.metrics.seed, epoch, total, samples)) for epoch in range(first, epochs))
    return wanted - (tally(visited(run.metrics.seed, first, total, samples)[:seen]) if seen else 0)


def _cut(sets: Sets, run: Run, known: Records) -> bool:
    """Return whether both the run and the baseline dropped the end of each epoch, by `drop_last`: what fills no batch of all
    ranks, whose number may differ."""
    m, data = run.metrics, known.ready[0].data
    whole = sets.training if data is None else data.training.samples
    return sets.training < whole and 0 < whole - known.ready[0].samples < m.batch_size * m.world_size


def amiss(sets: Sets | None, run: Run, known: Records) -> str:
    """Say that other samples were read than are due; empty: they were the right ones."""
    samples, epochs = known.ready[0].samples, run.metrics.epochs_planned
    if sets is not None and samples != sets.training and not _cut(sets, run, known):
        return f"an epoch has {samples} samples, the baseline's has {sets.training}"
    began = known.resumed[-1].at if known.resumed else -inf
    read = sum(event.visited or 0 for event in known.progress if event.at > began) % MODULUS
    if read == _wanted(run, known) % MODULUS:
        return ""
    return f"ranks did not read each of {samples} samples exactly once per epoch, in {plural(epochs, 'epoch')}"
