"""Checkpoints: when one is due, which rank writes what, and how a run resumes from one.

A checkpoint consists of the model that all ranks share right after an average, and the coordinator's state at that average.
Samples that are not in the model count as not trained; a resumed run trains them again. If a rank is lost before all have
written their parts, the checkpoint is dropped and the one before is kept. The next average may be ordered before all parts
of the last checkpoint are written, so several may be in the making, each with its own state."""

from __future__ import annotations

import dataclasses
from typing import Any

from ddp.core.messages.commands import Apply, CoordinatorCheckpoint, Plan, Publish, Save
from ddp.core.messages.events import RoundClosed, Saved
from ddp.core.samples.ledger import Ledger
from ddp.core.settings.checkpoints import Checkpointing
from ddp.core.settings.world import World
from ddp.core.state.coordinator_state import CoordinatorState, Mark, Saving
from ddp.core.state.rank_state import RankState
from ddp.core.values.frozen import replace
from ddp.core.values.persistent import RankSet, Row


def begin(cohort: CoordinatorState, plan: Plan, at: float, turn: bool) -> tuple[CoordinatorState, tuple[Save, ...]]:
    """Order all live ranks to save the model if a checkpoint is due: after the round in flight, or while all are idle."""
    settings, world = cohort.world.checkpoints, cohort.world
    if settings is None or cohort.broken:
        return cohort, ()
    mark = Mark(at, cohort.complete, averages(cohort, plan))
    last = cohort.savings[-1].mark if cohort.savings else cohort.saved
    reason = due(settings, mark, last, world.epochs)
    if not reason:
        return cohort, ()
    saving = Saving(cohort.saves, cohort.live, RankSet(cohort.live), mark)
    orders = tuple(Save(rank, saving.index, rank == cohort.live[0], turn, reason) for rank in cohort.live)
    return replace(cohort, savings=(*cohort.savings, saving), saves=cohort.saves + 1), orders


def due(settings: Checkpointing | None, mark: Mark, last: Mark, epochs: int, soon: bool = False) -> str:
    """Return why a checkpoint is due at `mark`, given the `last` one; empty: none is due. None is due at the end of a
    run. `soon`: the run is about to be ended from outside."""
    settings = hastened(settings) if soon else settings
    if settings is None or mark.epochs == epochs:
        return ""
    if not settings.due(mark.epochs - last.epochs, mark.averages - last.averages, mark.at - last.at):
        return ""
    return f"after {mark.epochs} epochs and {mark.averages} averages"


def hasten(cohort: CoordinatorState, at: float) -> CoordinatorState:
    """Have a checkpoint made at the next average, as the run is about to end. Does nothing if checkpoints are off."""
    settings = hastened(cohort.world.checkpoints)
    ending = (at, cohort.samples) if settings is not None and settings.every else None
    return replace(cohort, world=dataclasses.replace(cohort.world, checkpoints=settings), ending=ending)


def hastened(settings: Checkpointing | None) -> Checkpointing | None:
    """Return the checkpoint settings for a run that is about to end."""
    return Checkpointing(1, "averages", 0.0) if settings is not None and settings.every else settings


def begun(samples: int, seen: int) -> tuple[Ledger, ...]:
    """Return the ledger of the epoch in progress after `seen` samples in order; none at the end of an epoch."""
    epoch, rest = divmod(seen, samples)
    return (Ledger(epoch, samples).merge(((0, rest),)).reopen(),) if rest else ()


def averages(cohort: CoordinatorState, plan: Plan) -> int:
    """Return the number of averages, including the one in flight; where gradients are averaged in steps, the number of
    steps."""
    if not plan.in_step:
        return cohort.rounds
    world = cohort.world
    batch = world.batch * world.size
    epochs, rest = divmod(cohort.samples, world.samples)
    return epochs * -(-world.samples // batch) + -(-rest // batch)


def handed_out(outputs: tuple[Any, ...]) -> bool:
    """Return whether an average of snapshots was sent out just now, so that ranks execute the next orders right after
    it."""
    return any(isinstance(output, Apply) for output in outputs)


def on_saved(cohort: CoordinatorState, event: Saved) -> CoordinatorState:
    """Record that a rank has written its part, or failed to. Parts of a dropped checkpoint are ignored."""
    saving = next((saving for saving in cohort.savings if saving.index == event.index), None)
    if saving is None:
        return cohort
    if event.error:
        return _over(cohort, saving)
    files, models = (*saving.files, *event.files), saving.models | ({event.digests[0]} - {""})
    return _with(cohort, replace(saving, waiting=saving.waiting.remove(event.rank), files=files, models=models))


def settle(
    cohort: CoordinatorState, plan: Plan | None, policy_state: Any, outputs: tuple[Any, ...]
) -> tuple[CoordinatorState, tuple[Publish, ...]]:
    """Complete a checkpoint with the coordinator's state once its average is done; publish it once all parts are written;
    drop it if a rank is lost, its average broke or ranks saved different models."""
    orders: list[Publish] = []
    there = (plan is not None and plan.in_step) or any(isinstance(output, RoundClosed) for output in outputs)
    for saving in cohort.savings:
        same = cohort.live is saving.members or cohort.live == saving.members  # the first costs nothing
        if not same or (cohort.broken and saving.coordinator is None):
            cohort = _without(cohort, saving)
            continue
        if saving.coordinator is None and there:
            saving = replace(saving, coordinator=_checkpoint(cohort, plan, policy_state))
        cohort = _with(cohort, saving)
        if saving.coordinator is not None and not saving.waiting:
            parts = saving.index, saving.members, saving.files, saving.coordinator
            orders += [Publish(*parts, "all parts are there")] if len(saving.models) < 2 else []
            cohort = _over(cohort, saving)
    return cohort, tuple(orders)


def _with(cohort: CoordinatorState, saving: Saving) -> CoordinatorState:
    return replace(cohort, savings=tuple(saving if old.index == saving.index else old for old in cohort.savings))


def _over(cohort: CoordinatorState, saving: Saving) -> CoordinatorState:
    """Remove a checkpoint that is complete or has failed; the next one is scheduled from it."""
    later = max(cohort.saved, saving.mark, key=lambda mark: mark.averages)
    return replace(_without(cohort, saving), saved=later)


def _without(cohort: CoordinatorState, saving: Saving) -> CoordinatorState:
    return replace(cohort, savings=tuple(old for old in cohort.savings if old.index != saving.index))


def _checkpoint(cohort: CoordinatorState, plan: Plan | None, policy_state: Any) -> CoordinatorCheckpoint:
    ledgers = tuple(ledger.reopen() for ledger in cohort.ledgers)
    if len(cohort.live) < cohort.world.size:  # all ranks will be present again, so the policy begins anew
        plan = policy_state = None
    return CoordinatorCheckpoint(
        cohort.world.samples, cohort.begun, ledgers, cohort.rounds, cohort.saves, policy_state, plan
    )


def reopen(world: World, ranks: Row[RankState], saved: CoordinatorCheckpoint) -> CoordinatorState:
    """Return the state that resumes from a checkpoint: no grants, and all samples outside its model are free."""
    return CoordinatorState.start(
        world,
        ranks,
        ledgers=saved.ledgers,
        begun=saved.begun,
        rounds=saved.rounds,
        saves=saved.saves,
        samples=saved.samples,
    )
