"""Plays cells of the matrix against the production coordinator in virtual time, and proves that the fault happened."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bench.faults.meaning import VIRTUAL, FaultCell, FaultOutcome, chosen
from bench.faults.modes import MODES, FaultMode
from bench.faults.moments import LAG_S, PAUSE_S, SLOW, Striker
from bench.faults.outcome import FaultResult, full_strength, merged, missing, noticed, outcome, went_on
from ddp.core.messages.commands import Abort, Drop
from ddp.core.messages.events import Failed, Lost, Saved
from ddp.core.settings.checkpoints import Checkpointing
from ddp.core.settings.world import World
from ddp.sim import Costs, Simulation

BATCH, EPOCHS, STEPS = 4, 3, 12
"""Samples of a step, epochs, and steps of a rank per epoch."""
DEADLINE_S, START_S, LIMIT_S = 20.0, 2.0, 4000.0


def play(cell: FaultCell, size: int) -> FaultResult:
    """Play one cell that has a meaning at `size` ranks; each lost rank is restarted."""
    mode, hit = MODES[cell.mode], chosen(cell.ranks, size)
    striker = Striker(cell, mode, hit)
    simulation = Simulation(mode.windows(), world(mode, size), costs(striker), limit_s=LIMIT_S)
    striker.bind(simulation)
    try:
        simulation.run()
    except TimeoutError as error:
        return FaultResult(cell, VIRTUAL, size, happened(simulation, striker), None, error=f"deadlock: {error}"[:200])
    return _result(cell, size, simulation, striker)


def world(mode: FaultMode, size: int) -> World:
    """Return the world of the run in which a cell of `mode` is played."""
    facts = World(
        size,
        STEPS * size * BATCH,
        BATCH,
        EPOCHS,
        blocking=not mode.snapshots,
        in_step=mode.in_step,
        deadline_s=DEADLINE_S,
        tolerate_loss=True,
        restarts=None,
        checkpoints=Checkpointing(1, "epochs", 0.0) if mode.checkpoints else None,
    )
    if mode.sharded:
        return replace(facts, tolerate_loss=False, restarts=0, indispensable=f"{mode.name} needs all ranks")
    return facts


def costs(striker: Striker) -> Costs:
    """Return the costs of operations, with `striker`'s effect on links. A step takes one second, up to 5 % more by
    rank."""
    return Costs(
        lambda rank, step: 1.0 + 0.01 * (rank % 6),
        wire=striker.wire,
        lag_s=striker.lag,
        reduce_s=0.1,
        copy_s=0.1,
        save_s=0.2,
        evaluate_s=lambda rank: 0.5,
        start_s=lambda rank, life: START_S,
        report_s=0.0,
    )


def _result(cell: FaultCell, size: int, simulation: Simulation, striker: Striker) -> FaultResult:
    records, what = simulation.records, outcome(simulation.records, simulation.status)
    since, hit = min(striker.struck.values(), default=0.0), striker.hit
    whole = simulation.world.samples * EPOCHS
    trained = sum(entry.batch.samples for entry in simulation.trained)
    absent = missing(merged(records), simulation.world.samples, EPOCHS)
    reason = next((record.reason for _, record in records if isinstance(record, Abort)), "")
    return FaultResult(
        cell,
        VIRTUAL,
        size,
        happened(simulation, striker),
        what,
        noticed(records, hit, since) if cell.kind not in ("slow", "slow link") else None,
        went_on(records, hit, size, since) if what is not FaultOutcome.ENDED else None,
        full_strength(records, hit, since) if what is not FaultOutcome.ENDED else None,
        max(trained - (whole - max(absent, 0)), 0) if what is not FaultOutcome.ENDED else trained,
        absent,
        reason[:200],
    )


def happened(simulation: Simulation, striker: Striker) -> str:
    """Return how the run proves that every rank was hit; empty: it does not."""
    texts = []
    for rank in striker.hit:
        at = striker.struck.get(rank)
        if at is None:
            # a rank that died with the run, or was dropped, before its turn: the hit on the others explains it
            if simulation.status == "ok" or len(striker.struck) == 0:
                return ""
            continue
        text = _PROOFS[striker.cell.kind](simulation, striker, rank, at)
        if not text:
            return ""
        texts.append(text)
    return f"{texts[0]} ({len(texts)} of {len(striker.hit)} ranks)" if texts else ""


def _of(simulation: Simulation, rank: int, since: float) -> list[tuple[float, Any]]:
    return [(at, r) for at, r in simulation.records if at >= since and getattr(r, "rank", None) == rank]


def _died(simulation: Simulation, striker: Striker, rank: int, at: float) -> str:
    lost = any(isinstance(record, Lost) for _, record in _of(simulation, rank, at))
    return f"rank {rank} was killed at {at:.2f} s: Lost is recorded" if lost or _too_late(simulation, at) else ""


def _too_late(simulation: Simulation, at: float) -> bool:
    """Return whether the run ended before a message about it could arrive."""
    return simulation.now <= at + 0.002 and simulation.status != "ok"


def _stood(simulation: Simulation, striker: Striker, rank: int, at: float) -> str:
    later = [(when, r) for when, r in _of(simulation, rank, at + 0.01) if not _is_order(r)]
    given_up = [when for when, r in _of(simulation, rank, at) if isinstance(r, Drop)]
    end = given_up[0] if given_up else simulation.now
    silent = not any(when < end for when, _ in later)
    return f"rank {rank} was stopped at {at:.2f} s: nothing of it until {end:.2f} s" if silent and end > at else ""


def _is_order(record: Any) -> bool:
    return type(record).__module__ in ("ddp.core.messages.commands",) or type(record).__name__ == "Merged"


def _paused(simulation: Simulation, striker: Striker, rank: int, at: float) -> str:
    heard = [when for when, r in _of(simulation, rank, at + 0.01) if not _is_order(r)]
    if not heard:
        return ""
    quiet = min(heard) >= at + PAUSE_S - 1e-9
    return f"rank {rank} stood still from {at:.2f} s on: its next word came at {min(heard):.2f} s" if quiet else ""


def _raised(simulation: Simulation, striker: Striker, rank: int, at: float) -> str:
    raised = any(isinstance(record, Failed) for _, record in _of(simulation, rank, at))
    return f"rank {rank} raised at {at:.2f} s: Failed is recorded" if raised or _too_late(simulation, at) else ""


def _slowed(simulation: Simulation, striker: Striker, rank: int, at: float) -> str:
    steps = [
        stop - start for who, kind, start, stop in striker.slices if (who, kind) == (rank, "forward") and start > at
    ]
    long = [seconds for seconds in steps if seconds >= SLOW]
    return f"rank {rank}: {len(long)} of {len(steps)} later steps took {SLOW:g} s and more" if long else ""


def _lagged(simulation: Simulation, striker: Striker, rank: int, at: float) -> str:
    moved = striker.lagging.get(rank, [])
    return f"rank {rank}: {len(moved)} transfers took {LAG_S:g} s more" if moved else ""


def _dropped(simulation: Simulation, striker: Striker, rank: int, at: float) -> str:
    lost = [(when, event) for when, event in simulation.dropped if event.rank == rank and when >= at]
    return f"rank {rank}: {type(lost[0][1]).__name__} of {lost[0][0]:.2f} s was lost" if lost else ""


def _unsaved(simulation: Simulation, striker: Striker, rank: int, at: float) -> str:
    failed = [r for _, r in _of(simulation, rank, at) if isinstance(r, Saved) and r.error]
    return f"rank {rank} could not save: {failed[0].error}" if failed else ""


_PROOFS = {
    "crash": _died,
    "stop": _stood,
    "pause": _paused,
    "raise": _raised,
    "slow": _slowed,
    "slow link": _lagged,
    "lost message": _dropped,
    "disk full": _unsaved,
}
