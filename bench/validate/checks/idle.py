"""Every rank trains: it brings samples into the model, and between two averages its replica moves."""

from __future__ import annotations

from bench.base.figures import plural
from bench.results.runfolder import Run
from bench.validate.findings import Case
from bench.validate.records import Records, recorded
from bench.validate.verdict import Verdict, verdict
from ddp.core.events import Averaged

MOST = 0.1
"""Share of a rank's rounds in which its replica may stand still though it reports steps: at the end of a schedule rates are
too small to change a number in single precision."""


def check(case: Case) -> Verdict | None:
    """Return FAIL if a rank that was not lost brought in nothing, or reports steps that moved nothing; REFUSED where an
    epoch has too few batches for all ranks; None for one rank."""
    cell = case.cell
    runs = [(run, known) for run, known in recorded(cell) if run.metrics.world_size > 1]
    for run, _ in runs:
        if scarce := _scarce(run):
            return verdict("REFUSED", "idle", cell, f"seed {run.metrics.seed}: {scarce}")
    for run, known in runs:
        if wrong := _amiss(run, known):
            return verdict("FAIL", "idle", cell, f"seed {run.metrics.seed}: {wrong}")
    return verdict("PASS", "idle", cell, f"every rank of {plural(len(runs), 'run')} trained") if runs else None


def _scarce(run: Run) -> str:
    """Say why some ranks had no batch, where an epoch has fewer than ranks, and what gives each one."""
    m = run.metrics
    samples = (m.ledger.samples if m.ledger is not None else None) or 0
    batches = -(-samples // m.batch_size)
    if not 0 < batches < m.world_size or all(_trained(run)):
        return ""
    most = (samples - 1) // (m.world_size - 1)
    advice = f"train.batch_size={most} gives each one" if most else "train with fewer ranks"
    number = "1 batch" if batches == 1 else f"{batches} batches"
    return f"an epoch of {samples} samples has {number} for {m.world_size} ranks, and some train nothing: {advice}"


def _trained(run: Run) -> list[int]:
    """Return samples in the model by rank; ones where nothing is known."""
    m = run.metrics
    if m.ledger is None:
        return [1] * m.world_size
    return [sum(row.by_rank[rank] for row in m.ledger.epochs) for rank in range(m.world_size)]


def _amiss(run: Run, known: Records) -> str:
    for rank, samples in enumerate(_trained(run)):
        if not samples:
            return f"rank {rank} brought nothing into the model in the whole run"
        still, rounds = _still(known, rank)
        if still > MOST * rounds:
            return f"rank {rank} reports steps, but its replica did not move in {still} of {rounds} windows"
        probes = [probe for event in known.progress if event.rank == rank for probe in event.probes if probe.samples]
        empty = sum(probe.before[1] == 0.0 for probe in probes)
        if empty > MOST * len(probes):
            return f"rank {rank} reports steps, but {empty} of {len(probes)} gradients that were looked at are zero"
    return ""


def _still(known: Records, rank: int) -> tuple[int, int]:
    """Return (windows in which a rank reports steps and stayed as it was, windows with steps)."""
    answers = {event.round: event for event in known.averaged if event.rank == rank and event.after}
    still = rounds = 0
    last: Averaged | None = None
    laid: tuple[float | None, ...] = ()
    for number, parts in sorted(known.contributions().items()):
        event = parts.get(rank)
        if event is None or not event.before or number not in answers:
            continue
        if last is not None and last.round == number - 1 and event.steps:
            # What was trained while the last average was under way moved the replica before that was applied.
            rounds += 1
            still += event.before == last.after and laid == last.before
        last, laid = answers[number], event.before
    return still, rounds
