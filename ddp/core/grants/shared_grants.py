"""Shared grants, for gradients averaged in steps: each rank gets a slice of every global batch of an epoch.

Knows no window, no round and no backend."""

from __future__ import annotations

from ddp.core.messages.commands import Plan, Shorten, Train
from ddp.core.periodic.checkpoint_schedule import averages
from ddp.core.samples.ledger import Ledger
from ddp.core.samples.spans import Chunk, measure
from ddp.core.state.coordinator_state import CoordinatorState
from ddp.core.values.frozen import replace

WATCH_S = 0.5
"""Seconds after the announced end during which the ranks' speed is measured, to predict where an order reaches them."""


def share_epoch(cohort: CoordinatorState, plan: Plan) -> tuple[CoordinatorState, tuple[Train, ...]]:
    """Grant each rank its slice of every global batch of an epoch, up to the next checkpoint."""
    world = cohort.world
    if cohort.shares or cohort.round is not None or (not cohort.ledgers and cohort.begun == world.epochs):
        return cohort, ()
    if cohort.parted == cohort.generation:
        return cohort, ()  # they leave their group, and say what they have done of what was granted before
    if not cohort.ledgers:
        ledger = Ledger(cohort.begun, world.samples)
        cohort = replace(cohort, ledgers=(ledger,), begun=cohort.begun + 1)
    ledger, stop = cohort.ledgers[0], world.samples
    if ledger.complete:
        return cohort, ()
    first = measure(ledger.merged)
    if world.checkpoints is not None:
        steps = world.checkpoints.left(averages(cohort, plan) - cohort.saved.averages)
        stop = stop if steps is None else min(stop, first + steps * world.batch * world.size)
    return split(cohort, ledger.epoch, first, stop)


def split(cohort: CoordinatorState, epoch: int, start: int, stop: int) -> tuple[CoordinatorState, tuple[Train, ...]]:
    """Grant every live rank its slice of each global batch of [start, stop).

    The global batch keeps its initial size however many ranks are left, so training does not change."""
    world, live = cohort.world, cohort.live
    whole, parts = Chunk(epoch, start, stop, world.batch * world.size, 0, len(live), 0, world.least), range(len(live))
    chunks = [replace(whole, part=part) for part in parts]
    commands, draft = [], cohort.draft()
    for rank, chunk in zip(live, chunks, strict=True):
        draft.put(rank, replace(cohort.ranks[rank], queue=(chunk,), queued=chunk.steps))
        reason = f"slice {chunk.part + 1} of {len(live)} of every global batch of epoch {epoch}"
        seen = epoch * world.samples + start
        commands.append(Train(rank, chunk, seen, 1.0, reason))  # each step counts the whole global batch
    return cohort.after(draft, shares=tuple(zip(live, chunks, strict=True))), tuple(commands)


def shorten(cohort: CoordinatorState, at: float) -> tuple[CoordinatorState, tuple[Shorten, ...]]:
    """End the grants of all ranks some steps ahead, once the end was announced, so that a checkpoint can be made there.

    They train on meanwhile: the distance is three times the steps of at least `WATCH_S` seconds, plus two. If a rank is
    past that point when the order arrives it fails, and the run resumes from the checkpoint before. Once a rank is lost or
    waits, the exchange of the others breaks, and they save where they meet again."""
    exchanging = cohort.shares and cohort.round is None and not cohort.broken
    if cohort.ending is None or not exchanging or cohort.group != cohort.live:
        return cohort, ()
    (since, samples), world, chunk = cohort.ending, cohort.world, cohort.shares[0][1]
    if cohort.samples == samples:  # they do not train yet: the time until then says nothing of their steps
        return replace(cohort, ending=(at, samples)), ()
    steps = -(-(cohort.samples - samples) // (world.batch * world.size))
    end = max(cohort.ranks[rank].steps for rank in cohort.live) + 3 * steps + 2
    if at - since < WATCH_S or end >= chunk.steps:
        return cohort, ()
    stop, draft = chunk.start + end * chunk.batch, cohort.draft()
    for rank in cohort.live:
        queue = tuple(replace(granted, stop=stop) for granted in cohort.ranks[rank].queue)
        queued = sum(granted.steps for granted in queue)
        draft.put(rank, replace(cohort.ranks[rank], queue=queue, queued=queued))
    shares = tuple((rank, replace(granted, stop=stop)) for rank, granted in cohort.shares)
    orders = tuple(Shorten(rank, stop, "a checkpoint is due before the end") for rank in cohort.live)
    return cohort.after(draft, shares=shares), orders
