"""Saving: when a checkpoint is due, who lays down what for it, and how a run goes on from one.

A checkpoint is the model that all ranks share right after an average, with the books as of that average: what is not in the
model then is not in the books either, and is trained again by whoever goes on. If a rank is lost before all have laid down
their parts, that checkpoint is none; the one before stays.
"""

from __future__ import annotations

from typing import Any

from ddp.core.checkpointing import Checkpointing
from ddp.core.cohort import Cohort, Mark, RankState, Saving
from ddp.core.commands import Apply, Books, Plan, Publish, Save
from ddp.core.events import RoundClosed, Saved
from ddp.core.ledger import Ledger
from ddp.core.values import replace
from ddp.core.world import World


def begin(cohort: Cohort, plan: Plan, at: float, turn: bool) -> tuple[Cohort, tuple[Save, ...]]:
    """Order all live ranks to save the model, if it is time: behind the round in flight, or while all stand still."""
    settings, world = cohort.world.checkpoints, cohort.world
    if settings is None or cohort.saving is not None or cohort.broken:
        return cohort, ()
    mark = Mark(at, cohort.complete, averages(cohort, plan))
    reason = due(settings, mark, cohort.saved, world.epochs)
    if not reason:
        return cohort, ()
    saving = Saving(cohort.saves, cohort.live, cohort.live, mark)
    orders = tuple(Save(rank, saving.index, rank == cohort.live[0], turn, reason) for rank in cohort.live)
    return replace(cohort, saving=saving, saves=cohort.saves + 1), orders


def due(settings: Checkpointing | None, mark: Mark, last: Mark, epochs: int) -> str:
    """Why a checkpoint is due at `mark`, the last one being of `last`; empty if none is. The end of a run needs none."""
    if settings is None or mark.epochs == epochs:
        return ""
    if not settings.due(mark.epochs - last.epochs, mark.averages - last.averages, mark.at - last.at):
        return ""
    return f"after {mark.epochs} epochs and {mark.averages} averages"


def begun(samples: int, seen: int) -> tuple[Ledger, ...]:
    """The ledger of the epoch that is begun after `seen` samples in order; none at the end of one."""
    epoch, rest = divmod(seen, samples)
    return (Ledger(epoch, samples).merge(((0, rest),)).reopen(),) if rest else ()


def averages(cohort: Cohort, plan: Plan) -> int:
    """Averages since the start of the run, the one in flight too; inside steps, one a step of all ranks together."""
    if not plan.in_step:
        return cohort.rounds
    world = cohort.world
    batch = world.batch * world.size
    epochs, rest = divmod(cohort.samples, world.samples)
    return epochs * -(-world.samples // batch) + -(-rest // batch)


def handed_out(outputs: tuple[Any, ...]) -> bool:
    """Whether an average of snapshots was handed out just now: what ranks are told next, they do right behind it."""
    return any(isinstance(output, Apply) for output in outputs)


def on_saved(cohort: Cohort, event: Saved) -> Cohort:
    """A rank has laid down its part, or could not. Parts of a checkpoint that is off are of no interest."""
    saving = cohort.saving
    if saving is None or saving.index != event.index:
        return cohort
    if event.error:
        return replace(cohort, saving=None, saved=saving.mark)
    files = (*saving.files, *event.files)
    waiting = tuple(rank for rank in saving.waiting if rank != event.rank)
    return replace(cohort, saving=replace(saving, waiting=waiting, files=files))


def settle(
    cohort: Cohort, plan: Plan | None, policy_state: Any, outputs: tuple[Any, ...]
) -> tuple[Cohort, tuple[Publish, ...]]:
    """Keep the books of a checkpoint once its average is there; publish it once all parts are; drop it if a rank is lost."""
    saving = cohort.saving
    if saving is None:
        return cohort, ()
    if cohort.broken or cohort.live != saving.members:
        return replace(cohort, saving=None), ()
    in_step = plan is not None and plan.in_step
    if saving.books is None and (in_step or any(isinstance(output, RoundClosed) for output in outputs)):
        saving = replace(saving, books=_books(cohort, plan, policy_state))
    if saving.books is None or saving.waiting:
        return replace(cohort, saving=saving), ()
    order = Publish(saving.index, saving.members, saving.files, saving.books, "all parts are there")
    return replace(cohort, saving=None, saved=saving.mark), (order,)


def _books(cohort: Cohort, plan: Plan | None, policy_state: Any) -> Books:
    ledgers = tuple(ledger.reopen() for ledger in cohort.ledgers)
    if len(cohort.live) < cohort.world.size:  # all ranks will be there again: the policy begins anew
        plan = policy_state = None
    return Books(cohort.world.samples, cohort.begun, ledgers, cohort.rounds, cohort.saves, policy_state, plan)


def reopen(world: World, ranks: tuple[RankState, ...], books: Books) -> Cohort:
    """The cohort that goes on from a checkpoint: nothing is granted, and what is not in its model is free."""
    return Cohort(
        world,
        ranks,
        ledgers=books.ledgers,
        begun=books.begun,
        rounds=books.rounds,
        saves=books.saves,
        samples=books.samples,
    )
