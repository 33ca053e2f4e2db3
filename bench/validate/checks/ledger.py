"""Every sample of every epoch of a finished run was trained exactly once, whatever happened to its ranks, in batches of
the configured size, and by a rank that reports it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import inf

from bench.base.grouping import summed
from bench.base.number_format import plural
from bench.results.runfolder import Run
from bench.results.schema import LedgerTotals
from bench.validate.records.reading import lost_nobody
from bench.validate.records.run_records import UNBLOCKED, Records
from bench.validate.verdicts.findings import Case
from bench.validate.verdicts.verdict import Verdict, verdict
from ddp.core.messages.commands import Train
from ddp.core.messages.events import Progress
from ddp.core.samples.spans import measure

LARGER = 1.25
"""Factor by which the configured batch size may exceed the mean one: the last batch of an epoch is smaller."""


def check(case: Case) -> Verdict | None:
    """Return FAIL if a finished run did not train every sample exactly once, or in batches of another size; None if no
    run has a ledger."""
    cell = case.cell
    kept = [(run, run.metrics.ledger) for run in cell.runs if run.metrics.status == "ok" and run.metrics.ledger]
    if not kept:
        return None
    for run, ledger in kept:
        if not ledger.exactly_once:
            return verdict("FAIL", "ledger", cell, _amiss(run, ledger))
    if failure := case.failure("ledger", _batches) or case.failure("ledger", _booked, lost=True):
        return failure
    epochs = sum(len(ledger.epochs) for _, ledger in kept)
    return verdict("PASS", "ledger", cell, f"every sample of {plural(epochs, 'epoch')} was trained exactly once")


def _batches(run: Run, known: Records) -> str:
    """Name the rank whose batches have another size than configured. In graph mode shares follow speeds, so all ranks
    are taken together."""
    m, together = run.metrics, run.metrics.engine == "graph"
    least = max((event.least for event in known.ready), default=1)
    for ranks, size, progress in _parts(run, known):
        steps = sum(event.steps for event in progress)
        samples = sum(event.samples for event in progress)
        for event in () if together else progress:
            if event.samples > event.steps * (size + least):
                own = f"batches of {event.samples / event.steps:.3g} samples in epoch {event.epoch}"
                return f"rank {event.rank} trained {own}, the batch size is set to {size}"
        if steps * size > LARGER * samples + 2 * m.epochs_planned * ranks * size:
            return f"batches of {samples / steps:.3g} samples were trained, the batch size is set to {size}"
    return ""


def _booked(run: Run, known: Records) -> str:
    """Name the grant of another size than configured, or the rank of which more samples entered the model than it reports
    since the run was resumed for the last time; empty: none."""
    shared = any(plan.in_step for plan in known.plans)
    for ranks, size, begin, end in _sizes(run, known):
        due = size * ranks if shared else size
        for at, order in known.work:
            if isinstance(order, Train) and begin <= at < end and order.chunk.batch != due:
                whose = f"rank {order.rank}, epoch {order.chunk.epoch}"
                return f"{whose}: batches of {order.chunk.batch} samples were granted, {due} are set"
    return _unreported(run, known) or _ahead(run, known)


def _unreported(run: Run, known: Records) -> str:
    m, began = run.metrics, max((event.at for event in known.resumed), default=-inf)
    left: set[int | None] = {fault.rank for fault in m.faults} | {order.rank for order in known.drops}
    left |= {event.rank for event in (*known.lost, *known.joined)}
    loaded = Counter(order.rank for order in known.loads)
    counts = summed(((e.rank, e.epoch), measure(e.spans)) for e in known.merged if e.at > began)
    for event in known.progress:
        counts[event.rank, event.epoch] -= event.samples * (event.at > began)
    for (rank, epoch), more in sorted(counts.items()):
        # Behind a loss a rank may load the step that another one was ahead.
        if rank not in left and more > loaded[rank] * m.batch_size * m.world_size:
            return f"rank {rank}, epoch {epoch}: {plural(more, 'sample')} entered the model that it never reported"
    return ""


def _ahead(run: Run, known: Records) -> str:
    """Name the rank of a resumed run whose model had more or fewer samples in it than its checkpoint said; empty: none.
    Where ranks wait for each other, each checkpoint holds what they had reported until then, and no more."""
    waited = run.metrics.backend != UNBLOCKED and lost_nobody(run.metrics) and not known.loads
    if not (known.resumed and known.merged and waited):
        return ""
    counts = summed(((e.rank, e.epoch), e.samples) for e in known.progress)
    for event in known.merged:
        counts[event.rank, event.epoch] -= measure(event.spans)
    for (rank, epoch), more in sorted(counts.items()):
        if more:
            what = "trained twice, as the model was ahead of" if more > 0 else "never trained, as the model was behind"
            return f"rank {rank}, epoch {epoch}: {plural(abs(more), 'sample')} {what} what its checkpoint says"
    return ""


def _parts(run: Run, known: Records) -> Iterator[tuple[int, int, list[Progress]]]:
    """Iterate over (number of ranks, batch size, reports) of the run."""
    for ranks, batch, begin, end in _sizes(run, known):
        yield ranks, batch, [event for event in known.progress if begin <= event.at < end]


def _sizes(run: Run, known: Records) -> Iterator[tuple[int, int, float, float]]:
    """Iterate over (number of ranks, batch size, begin, end) of the run; one that was resumed with other ranks has several
    parts."""
    m = run.metrics
    sizes = [(each["world_size"], each["batch_size"]) for each in run.config.get("resized") or ()]
    ends = [event.at for event in known.resumed if event.ranks]
    parts = zip([-inf, *ends], [*ends, inf], [*sizes, (m.world_size, m.batch_size)], strict=False)
    for begin, end, (ranks, batch) in parts:
        yield ranks, batch, begin, end


def _amiss(run: Run, ledger: LedgerTotals) -> str:
    """Describe the first epoch that is wrong, with counts."""
    m = run.metrics
    for row in ledger.epochs:
        missing = (ledger.samples or 0) - row.samples
        if missing or row.repeated:
            never = f"{plural(missing, 'sample')} never trained, {row.repeated} repeated"
            return f"seed {m.seed}, epoch {row.epoch}: {never}"
    return f"seed {m.seed}: {len(ledger.epochs)} of {m.epochs_planned} epochs trained"
