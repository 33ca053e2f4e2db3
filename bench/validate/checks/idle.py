"""Every rank trains: it brings samples into the model, and between two averages its replica moves."""

from __future__ import annotations

from bench.runfolder import Run
from bench.validate.findings import Case
from bench.validate.records import Records, records
from bench.validate.verdict import Verdict, verdict
from ddp.core.events import Averaged

MOST = 0.1
"""Share of a rank's rounds in which its replica may stand still though it reports steps: at the end of a schedule rates are
too small to change a number in single precision."""


def check(case: Case) -> Verdict | None:
    """FAIL if a rank that was not lost brought in nothing, or reports steps that moved nothing; None for one rank."""
    cell = case.cell
    found = [(run, known) for run in cell.runs if run.metrics.world_size > 1 and (known := records(run)) is not None]
    if not found:
        return None
    for run, known in found:
        if wrong := _amiss(run, known):
            return verdict("FAIL", "idle", cell, f"seed {run.metrics.seed}: {wrong}")
    return verdict("PASS", "idle", cell, f"every rank of {len(found)} runs trained")


def _amiss(run: Run, known: Records) -> str:
    ledger = run.metrics.ledger
    for rank in range(run.metrics.world_size):
        brought = sum(row.by_rank[rank] for row in ledger.epochs) if ledger is not None else 1
        if not brought:
            return f"rank {rank} brought nothing into the model in the whole run"
        still, rounds = _still(known, rank)
        if still > MOST * rounds:
            return f"rank {rank} reports steps, but its replica did not move in {still} of {rounds} windows"
        probes = [probe for event in known.progress if event.rank == rank for probe in event.probes if probe.samples]
        empty = sum(probe.brought[1] == 0.0 for probe in probes)
        if empty > MOST * len(probes):
            return f"rank {rank} reports steps, but {empty} of {len(probes)} gradients that were looked at are zero"
    return ""


def _still(known: Records, rank: int) -> tuple[int, int]:
    """(windows in which a rank reports steps and stayed as it was, windows with steps)."""
    answers = {event.round: event for event in known.averaged if event.rank == rank and event.became}
    still = rounds = 0
    before: Averaged | None = None
    laid: tuple[float | None, ...] = ()
    for number, parts in sorted(known.brought().items()):
        event = parts.get(rank)
        if event is None or not event.brought or number not in answers:
            continue
        if before is not None and before.round == number - 1 and event.steps:
            # What was trained while the last average was under way moved the replica before that was applied.
            rounds += 1
            still += event.brought == before.became and laid == before.brought
        before, laid = answers[number], event.brought
    return still, rounds
