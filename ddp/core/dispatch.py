"""Dispatch: which rank gets which samples next. The same for every policy; a policy's `Plan` says how many steps.

Pure functions of the cohort and the plan. Knows no controller and no backend beyond the world's two facts.
"""

from __future__ import annotations

from dataclasses import replace

from ddp.core.cohort import Cohort
from ddp.core.commands import Plan, Train
from ddp.core.elche import clamp_total, fit
from ddp.core.ledger import Ledger
from ddp.core.saving import averages
from ddp.core.spans import Chunk, measure


def dispatch(cohort: Cohort, plan: Plan) -> tuple[Cohort, tuple[Train, ...]]:
    """Grant every rank what the plan allows it and the epochs in progress still hold."""
    return _whole_epoch(cohort, plan) if plan.in_step else _windows(cohort, plan)


def begin_window(cohort: Cohort, plan: Plan) -> Cohort:
    """Set the counts of the next window: the plan's, so that the rest of the epoch falls into equal windows."""
    counts = tuple(n if cohort.ranks[rank].alive else 0 for rank, n in enumerate(plan.counts))
    free = next((ledger.free for ledger in cohort.ledgers if ledger.free), cohort.world.samples)
    return replace(cohort, window=fit(counts, -(-free // cohort.world.batch)))


def allowance(cohort: Cohort, plan: Plan, rank: int) -> int:
    """Steps that may still be granted to `rank`."""
    state, current = cohort.ranks[rank], cohort.round
    since, queued = state.steps, state.queued - state.before
    if current is not None and rank in current.members:
        if cohort.world.blocking:
            # The order to average is ahead of what is granted now: the window ends with it.
            since = 0 if rank in current.waiting else since
        elif not plan.overlap and current.stage != "apply":
            return 0
    return cohort.window[rank] + plan.ahead[rank] - since - queued


def starved(cohort: Cohort, plan: Plan, rank: int) -> bool:
    """Whether the rank stands still for lack of samples; to be asked after a dispatch."""
    return not cohort.ranks[rank].queue and allowance(cohort, plan, rank) > 0


def _windows(cohort: Cohort, plan: Plan) -> tuple[Cohort, tuple[Train, ...]]:
    commands: list[Train] = []
    cohort = cohort if cohort.window else begin_window(cohort, plan)
    while True:
        cohort = _begin_epoch(cohort, plan)
        ledger = next((ledger for ledger in cohort.ledgers if ledger.free), None)
        takers = [rank for rank in cohort.live if allowance(cohort, plan, rank) > 0]
        if ledger is None or not takers:
            return cohort, tuple(commands)
        counts = tuple(n if cohort.ranks[rank].alive else 0 for rank, n in enumerate(cohort.window))
        shares = clamp_total(counts, -(-ledger.free // cohort.world.batch))
        for rank in takers:
            # At the end of an epoch a share may be zero steps; one step then goes to whoever asks.
            steps = min(allowance(cohort, plan, rank), max(shares[rank], 1))
            cohort, command = _grant(cohort, plan, rank, steps, ledger.epoch)
            commands.append(command)
            if not cohort.ledger(ledger.epoch).free:
                break


def _grant(cohort: Cohort, plan: Plan, rank: int, steps: int, epoch: int) -> tuple[Cohort, Train]:
    world = cohort.world
    ledger, (start, stop) = cohort.ledger(epoch).take(steps * world.batch)
    chunk = Chunk(epoch, start, stop, world.batch)
    state = cohort.ranks[rank]
    # What all may do in a window over what this rank may do: no rank takes the schedule beyond what the cohort can reach.
    reach = [steps + more for steps, more in zip(cohort.window, plan.ahead, strict=True)]
    pace = sum(reach[r] for r in cohort.live) / reach[rank]
    ahead = sum(measure(queued.spans(queued.steps)) for queued in state.queue)
    command = Train(
        rank,
        chunk,
        seen=cohort.samples + round(pace * ahead),
        pace=pace,
        reason=f"{chunk.steps} steps, of {cohort.window[rank]} in the window",
    )
    cohort = cohort.with_ledger(ledger).with_rank(rank, replace(state, queue=(*state.queue, chunk)))
    return cohort, command


def _begin_epoch(cohort: Cohort, plan: Plan) -> Cohort:
    """Open the next epoch where the one before is all granted and few enough are in progress."""
    closing = len(cohort.round.closes) if cohort.round is not None else 0
    in_progress = len(cohort.ledgers) - closing
    exhausted = all(ledger.free == 0 for ledger in cohort.ledgers)
    if not exhausted or in_progress > plan.lookahead or cohort.begun == cohort.world.epochs:
        return cohort
    ledger = Ledger(cohort.begun, cohort.world.samples)
    return replace(cohort, ledgers=(*cohort.ledgers, ledger), begun=cohort.begun + 1)


def _whole_epoch(cohort: Cohort, plan: Plan) -> tuple[Cohort, tuple[Train, ...]]:
    """Where gradients are averaged inside the step: a slice of every global batch to each rank, of the whole epoch at once
    or up to the next checkpoint."""
    world = cohort.world
    if cohort.shares or cohort.round is not None or (not cohort.ledgers and cohort.begun == world.epochs):
        return cohort, ()
    if not cohort.ledgers:
        ledger = Ledger(cohort.begun, world.samples, cursor=world.samples)
        cohort = replace(cohort, ledgers=(ledger,), begun=cohort.begun + 1)
    ledger, stop = cohort.ledgers[0], world.samples
    if ledger.complete:
        return cohort, ()
    first = measure(ledger.merged)
    if world.checkpoints is not None:
        steps = world.checkpoints.left(averages(cohort, plan) - cohort.saved.averages)
        stop = stop if steps is None else min(stop, first + steps * world.batch * world.size)
    return split(cohort, ledger.epoch, first, stop)


def split(cohort: Cohort, epoch: int, start: int, stop: int) -> tuple[Cohort, tuple[Train, ...]]:
    """Grant every live rank its slice of each global batch of [start, stop).

    The global batch stays what the whole cohort began with, however many ranks are left: so does the training.
    """
    world, live = cohort.world, cohort.live
    chunks = [Chunk(epoch, start, stop, world.batch * world.size, part, len(live)) for part in range(len(live))]
    commands = []
    for rank, chunk in zip(live, chunks, strict=True):
        cohort = cohort.with_rank(rank, replace(cohort.ranks[rank], queue=(chunk,)))
        reason = f"slice {chunk.part + 1} of {len(live)} of every global batch of epoch {epoch}"
        seen, pace = epoch * world.samples + start, float(len(live))
        commands.append(Train(rank, chunk, seen, pace, reason))
    return replace(cohort, shares=tuple(zip(live, chunks, strict=True))), tuple(commands)
