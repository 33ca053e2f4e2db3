"""Every sample of every epoch of a finished run was trained exactly once, whatever happened to its ranks, in batches of
the configured size."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from bench.base.number_format import plural
from bench.results.runfolder import Run
from bench.results.schema import LedgerTotals
from bench.validate.records.run_records import Records
from bench.validate.verdicts.findings import Case
from bench.validate.verdicts.verdict import Verdict, verdict
from ddp.core.messages.events import Progress

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
    if failure := case.failure("ledger", _batches):
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


def _parts(run: Run, known: Records) -> Iterator[tuple[int, int, list[Progress]]]:
    """Iterate over (number of ranks, batch size, reports) of the run; a run that was resumed with other ranks has
    several parts."""
    m = run.metrics
    sizes = [(each["world_size"], each["batch_size"]) for each in run.config.get("resized") or ()]
    ends = [event.at for event in known.resumed if event.ranks]
    parts = zip([-inf, *ends], [*ends, inf], [*sizes, (m.world_size, m.batch_size)], strict=False)
    for begin, end, (ranks, batch) in parts:
        yield ranks, batch, [event for event in known.progress if begin <= event.at < end]


def _amiss(run: Run, ledger: LedgerTotals) -> str:
    """Describe the first epoch that is wrong, with counts."""
    m = run.metrics
    for row in ledger.epochs:
        missing = (ledger.samples or 0) - row.samples
        if missing or row.repeated:
            never = f"{plural(missing, 'sample')} never trained, {row.repeated} repeated"
            return f"seed {m.seed}, epoch {row.epoch}: {never}"
    return f"seed {m.seed}: {len(ledger.epochs)} of {m.epochs_planned} epochs trained"
