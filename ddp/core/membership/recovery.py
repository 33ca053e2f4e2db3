"""What happens after a rank is lost or a collective broke: which ranks can still meet, and from which state they continue.

A collective needs a group of ranks that are all alive: `Join` forms a new one. Where gradients are averaged in steps,
survivors may be one step apart; those behind load the state of one ahead, and the rest of the epoch is divided anew."""

from __future__ import annotations

from ddp.core.grants.shared_grants import split
from ddp.core.membership import joining
from ddp.core.messages.commands import Abort, Command, Drop, Join, Train
from ddp.core.messages.events import Averaged, AverageFailed, Lost, RankEvent
from ddp.core.rounds.round_actions import RETRIES, Output, merge
from ddp.core.rounds.rounds import react, request_state
from ddp.core.state.coordinator_state import CoordinatorState, Raised, record_steps
from ddp.core.values.frozen import replace
from ddp.core.values.persistent import NOBODY


def lose(
    cohort: CoordinatorState, rank: int, at: float, reason: str, origin: str = ""
) -> tuple[CoordinatorState, tuple[Output, ...]]:
    """Continue without a lost rank, or abort the run. `origin`: place of the exception, if it raised one."""
    state = cohort.ranks[rank]
    if state.finished:
        return cohort, ()
    if state.coming:
        return joining.give_up(cohort, rank, at, reason)
    survivors = len(cohort.live) > 1 and cohort.ready
    if not (cohort.world.tolerate_loss and survivors):
        again = cohort.world.restarts != 0  # all ranks will be restarted from a checkpoint
        why = "" if origin or again else cohort.world.indispensable
        return cohort, (Abort("failed", f"rank {rank}: {reason}{why and f'; {why}'}"),)
    if twins := [other.rank for other in cohort.raised if other.origin == origin and other.rank != rank]:
        # The same error on two ranks is no coincidence: the program is wrong, and would fail on the other ranks too.
        return cohort, (Abort("failed", f"rank {rank}: {reason} (so did rank {twins[0]})"),)
    if origin:
        raised = Raised(rank, origin, cohort.rounds, cohort.generation)
        cohort = replace(cohort, raised=(*cohort.raised, raised))
    if not cohort.shares:
        if state.before and cohort.round is not None and cohort.round.gathers(rank):
            # If the others get the average, it contains these steps: this rank entered the collective behind them. Else
            # they are given back with the round.
            cohort = record_steps(cohort, rank, state.before)
            state = cohort.ranks[rank]
        for chunk in state.queue:
            ledger = cohort.ledger(chunk.epoch)
            cohort = cohort.with_ledger(ledger.give_back(chunk.spans(chunk.steps)))
    cohort = replace(
        cohort.with_rank(rank, replace(state, alive=False, queue=(), queued=0, course=(), owed=())),
        orphaned=(*cohort.orphaned, *state.owed),
        broken=cohort.broken.remove(rank),
    ).with_window(())  # to be divided anew among the survivors
    cohort, outputs = react(cohort, Lost(at, rank, reason))
    cohort, starts = joining.restart(cohort, rank, at)
    return cohort, (Drop(rank, reason), *starts, *outputs)


def distrust(
    cohort: CoordinatorState, event: RankEvent | Lost, error: str
) -> tuple[CoordinatorState, tuple[Output, ...]]:
    """Give up a rank whose report contradicts the state, most likely because a message was lost."""
    rank, current = event.rank, cohort.round
    averages = current is not None and not current.joining
    if cohort.world.blocking and not cohort.shares and current is not None and averages and rank in current.waiting:
        # The other ranks may hold its replica already. Only its answer to the round says how much of its training was
        # in it, so
        # ignore other events until then. If that answer is what contradicts, add the steps that it reports.
        if not isinstance(event, (Averaged, AverageFailed)) or event.round != current.index:
            return cohort, ()
        missing = (event.steps or 0) - cohort.ranks[rank].steps
        if 0 < missing <= cohort.ranks[rank].queued:
            cohort = record_steps(cohort, rank, missing)
    return lose(cohort, rank, event.at, error)


def recover(cohort: CoordinatorState, at: float) -> tuple[CoordinatorState, tuple[Output, ...]]:
    """Form a group of the live ranks if necessary, and let ranks join. Called whenever no round is in flight."""
    blocking = cohort.world.blocking
    whole = not blocking or (len(cohort.group) == len(cohort.live) and not cohort.broken)
    if cohort.round is not None or (whole and not cohort.joiners):
        return cohort, ()
    if not cohort.shares:
        orders: tuple[Output, ...] = ()
        if not whole:
            cohort, orders = _regroup(cohort, "ranks that can meet", void=False)
        if not (back := joining.due(cohort)):
            return cohort, orders
        cohort, more = request_state(cohort, cohort.live[0], (), back, at)
        return cohort, (*orders, *more)
    if whole:
        return joining.part(cohort)
    return _rejoin(cohort, at)


def _rejoin(cohort: CoordinatorState, at: float) -> tuple[CoordinatorState, tuple[Output, ...]]:
    """Have all ranks resume from the same step, where gradients are exchanged in steps and the group is broken."""
    # Ranks report mostly in ascending order, so one that has not is found soonest from the end.
    if any(rank not in cohort.broken and cohort.ranks[rank].queue for rank in reversed(cohort.live)):
        return cohort, ()  # their exchange will break too, or they will time out
    same = cohort.group == cohort.live and cohort.parted != cohort.generation
    if same and cohort.retries == RETRIES:
        return cohort, (Abort("failed", f"gradients could not be exchanged: {cohort.cause}"),)
    ahead = max(cohort.ranks[rank].steps for rank in cohort.live)
    behind = tuple(rank for rank in cohort.live if cohort.ranks[rank].steps < ahead)
    back = () if behind else joining.due(cohort)  # it loads more than they do, from a file of its own
    if not behind and not back:
        cohort = replace(cohort, retries=cohort.retries + 1 if same else 0)
        return _resume(cohort, at)
    source = next(rank for rank in cohort.live if rank not in behind)
    return request_state(cohort, source, behind, back, at)


def settle(cohort: CoordinatorState, at: float) -> tuple[CoordinatorState, tuple[Output, ...]]:
    """Enter into the ledger what all ranks, lost ones too, have trained of a shared grant: every step used their
    gradients."""
    steps = max(cohort.ranks[rank].steps for rank in cohort.live)
    trained = [(rank, ((chunk.epoch, chunk.spans(steps)),)) for rank, chunk in cohort.shares]
    cohort, lines = merge(cohort, trained, at)
    ranks = {*cohort.live, *(rank for rank, _ in cohort.shares)}  # ranks may have joined since
    cohort = cohort.with_ranks((r, replace(cohort.ranks[r].contribute(), queue=(), queued=0)) for r in ranks)
    _, chunk = cohort.shares[0]
    done = min(chunk.start + steps * chunk.batch, chunk.stop)
    return replace(cohort, shares=(), samples=chunk.epoch * cohort.world.samples + done), lines


def _resume(cohort: CoordinatorState, at: float) -> tuple[CoordinatorState, tuple[Output, ...]]:
    """Divide the rest of the epoch among the survivors, which hold the same state. If the end was announced, they save a
    checkpoint first."""
    _, chunk = cohort.shares[0]
    cohort, lines = settle(cohort, at)
    cohort, joins = _regroup(cohort, "ranks that exchange gradients", void=True)
    first = cohort.samples - chunk.epoch * cohort.world.samples
    orders: tuple[Train, ...] = ()
    if first < chunk.stop and cohort.ending is None:
        cohort, orders = split(cohort, chunk.epoch, first, chunk.stop)
    return cohort, (*lines, *joins, *orders)


def _regroup(cohort: CoordinatorState, reason: str, void: bool) -> tuple[CoordinatorState, tuple[Command, ...]]:
    live, generation = cohort.live, cohort.generation + 1
    lives = tuple(cohort.ranks[rank].life for rank in live)
    lives = lives if any(lives) else ()
    joins = tuple(Join(rank, generation, live, void, reason, lives) for rank in live)
    return replace(cohort, group=live, generation=generation, broken=NOBODY), joins
