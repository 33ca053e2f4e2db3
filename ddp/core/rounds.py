"""Rounds: when the replicas are brought together, and the stages of doing so. The same for every policy.

On a blocking backend a round is one stage (`collect`: ranks meet in a collective). Otherwise ranks lay down snapshots
(`collect`), the coordinator's process averages them (`reduce`), and ranks add the difference (`apply`). Where a collective
broke on some ranks only, one that has the result lays it down (`share`) and the others take it (`adopt`).
"""

from __future__ import annotations

from ddp.core import evaluation
from ddp.core.allowance import starved
from ddp.core.commands import Abort, Apply, Average, Command, LoadState, Plan, Reduce, SendState
from ddp.core.coordinator_state import Contribution, CoordinatorState, Round, Trained
from ddp.core.errors import ProtocolError
from ddp.core.events import Averaged, AverageFailed, Merged, Reduced, RoundClosed, Shared, Snapshot
from ddp.core.spans import measure
from ddp.core.values import replace

Output = Command | RoundClosed | Merged

IN_STEP = -1
"""The round that a failed gradient exchange inside a step is reported under."""
SLIVER = 4
"""A quarter of a window is not worth a round of its own."""
SHORT = 2
"""With so many steps left to do, or fewer, a rank runs short of work."""
RETRIES = 1
"""How often in a row a collective may break though no rank is lost."""


def due(cohort: CoordinatorState, plan: Plan) -> str:
    """Why a round is due now; empty if none is. To be asked after a dispatch."""
    live = [cohort.ranks[rank] for rank in cohort.live]
    if cohort.round is not None or plan.in_step or cohort.reserve:
        return ""
    if in_turn(cohort, plan):
        return "the window is granted" if any(state.steps or state.queue for state in live) else ""
    if not any(state.steps for state in live):
        return ""
    if cohort.retries:
        return "the last one broke"
    if cohort.ledgers and cohort.fully_trained(cohort.ledgers[0].epoch):
        return f"epoch {cohort.ledgers[0].epoch} is trained"
    if all(cohort.ranks[r].steps >= cohort.window[r] or starved(cohort, plan, r) for r in cohort.live):
        return "" if _ends_soon(cohort) else "every rank has done its share of the window"
    return ""


def _ends_soon(cohort: CoordinatorState) -> bool:
    """Whether all are at work, and lack but a sliver of the oldest epoch: the round that ends it will do for both."""
    oldest = cohort.ledgers[0]
    if oldest.free or not all(cohort.ranks[rank].queue for rank in cohort.live):
        return False
    return cohort.in_work(oldest.epoch) * SLIVER <= sum(cohort.window)


def in_turn(cohort: CoordinatorState, plan: Plan) -> bool:
    """Whether the order to average travels with the window's work: to a collective, if nobody runs ahead of it.

    Not where the last one broke though nobody is lost. All stand still then, and what broke it may have been the wait for
    a slow rank: with a window before it, the next one might break of the same.
    """
    return cohort.world.blocking and not any(plan.ahead) and not cohort.retries


def open_round(cohort: CoordinatorState, plan: Plan, reason: str) -> tuple[CoordinatorState, tuple[Command, ...]]:
    """Order all live ranks to average."""
    index, members, turn = cohort.rounds, cohort.live, in_turn(cohort, plan)
    # The order carries the evaluation along, so it must be known now which epochs are complete with this round.
    closes = cohort.first_epochs(lambda ledger: ledger.free == 0 if turn else cohort.fully_trained(ledger.epoch))
    short = tuple(rank for rank in members if cohort.ranks[rank].queued <= SHORT)
    current = Round(index, members, "collect", members, closes, starved=short)
    cohort = replace(cohort, round=current, rounds=index + 1)
    for rank in members if turn else ():
        cohort = cohort.with_rank(rank, replace(cohort.ranks[rank], before=cohort.ranks[rank].queued))
    commands: list[Command] = [Average(rank, index, members, turn, reason) for rank in members]
    if cohort.world.blocking:
        cohort, evaluations = evaluation.evaluate(cohort, closes, turn)
        commands += evaluations
    return cohort, tuple(commands)


def on_snapshot(cohort: CoordinatorState, event: Snapshot) -> tuple[CoordinatorState, tuple[Output, ...]]:
    """A rank's contribution lies in shared memory."""
    _expect(cohort, event, "collect")
    return advance(_contribute(cohort, event.rank, event.steps), at=event.at)


def on_reduced(cohort: CoordinatorState, event: Reduced) -> tuple[CoordinatorState, tuple[Output, ...]]:
    """The average of the snapshots is there; hand it out."""
    current = _expect(cohort, event, "reduce")
    live = tuple(rank for rank in current.members if cohort.ranks[rank].alive)
    current = replace(current, stage="apply", waiting=live, seconds=((-1, event.seconds),))
    cohort = replace(cohort, round=current)
    commands: list[Command] = [Apply(rank, event.round, "the average is there") for rank in live]
    cohort, evaluations = evaluation.evaluate(cohort, current.closes)
    return cohort, (*commands, *evaluations)


def on_averaged(cohort: CoordinatorState, event: Averaged) -> tuple[CoordinatorState, tuple[Output, ...]]:
    """A rank holds the average."""
    late = cohort.round is not None and cohort.round.stage == "adopt"
    stage = "adopt" if late else "collect" if cohort.world.blocking else "apply"
    current = _expect(cohort, event, stage)
    if event.divergence is None:
        return cohort, (Abort("diverged", f"the parameters of rank {event.rank} are not finite"),)
    if stage == "collect":
        current = replace(current, seconds=(*current.seconds, (event.rank, event.seconds)))
    away, apart = (event.rank, event.away_s), (event.rank, event.divergence)
    current = replace(current, away=(*current.away, away), divergence=(*current.divergence, apart))
    cohort = replace(cohort, round=current)
    if cohort.shares:
        cohort = _caught_up(cohort, event.rank)
    if stage == "apply" or cohort.shares:
        return advance(replace(cohort, round=current.without(event.rank)), at=event.at)
    return advance(_contribute(cohort, event.rank, event.steps), at=event.at)


def on_failed(cohort: CoordinatorState, event: AverageFailed) -> tuple[CoordinatorState, tuple[Output, ...]]:
    """A collective broke on a rank; what to do is known once all have answered, or are lost."""
    if event.steps not in (None, reported := cohort.ranks[event.rank].steps):
        raise ProtocolError(f"rank {event.rank} did {event.steps} steps, {reported} were reported: {event}")
    cohort = replace(cohort, broken=(*cohort.broken, event.rank), cause=event.error)
    if event.round == IN_STEP:
        return cohort, ()
    current = _expect(cohort, event, "collect").without(event.rank)
    return advance(replace(cohort, round=replace(current, failed=(*current.failed, event.rank))), at=event.at)


def on_shared(cohort: CoordinatorState, event: Shared) -> tuple[CoordinatorState, tuple[Output, ...]]:
    """What came out of a round lies there for those who missed it."""
    current = _expect(cohort, event, "share")
    missed = tuple(rank for rank in current.failed if cohort.ranks[rank].alive)
    cohort = replace(cohort, round=replace(current, stage="adopt", waiting=missed))
    orders: list[Output] = []
    for rank in missed:
        owed = tuple(o for o in cohort.evaluating if o.rank == rank and o.epoch in current.closes)
        orders += [LoadState(rank, current.index, "the others have it"), *evaluation.orders(owed)]
    cohort, more = advance(cohort, at=event.at)
    return cohort, (*orders, *more)


def on_lost(cohort: CoordinatorState, rank: int, at: float) -> tuple[CoordinatorState, tuple[Output, ...]]:
    """A rank is gone. What it had trained is free again, unless it went into an average."""
    current = cohort.round
    if current is None:
        return _give_back(cohort, rank), ()
    contributed = any(entry.rank == rank for entry in current.contributions)
    if not cohort.world.blocking or contributed or rank not in current.members:
        # Else the others' answers will tell whether its replica went in.
        cohort = _give_back(cohort, rank)
    if current.stage == "collect" and not cohort.world.blocking and rank in current.waiting:
        # Its samples miss the average, so no epoch is complete with it.
        current = replace(current, closes=(), members=tuple(r for r in current.members if r != rank))
    if rank not in current.waiting:
        return cohort, ()
    return advance(replace(cohort, round=current.without(rank)), at=at)


def _expect(
    cohort: CoordinatorState, event: Snapshot | Reduced | Averaged | AverageFailed | Shared, stage: str
) -> Round:
    """The round in flight, if `event` belongs to it now; else the one error that names both."""
    current = cohort.round
    fits = current is not None and current.index == event.round and current.stage == stage
    if fits and current is not None and (isinstance(event, Reduced) or event.rank in current.waiting):
        return current
    raise ProtocolError(f"{event} does not fit the round in flight: {current}")


def _contribute(cohort: CoordinatorState, rank: int, steps: int) -> CoordinatorState:
    state, current = cohort.ranks[rank], cohort.round
    assert current is not None
    if steps != state.steps:
        raise ProtocolError(
            f"rank {rank} contributed {steps} steps to round {current.index}, {state.steps} were reported"
        )
    entry = Contribution(rank, state.trained, state.steps, state.samples, state.busy_s)
    current = replace(current.without(rank), contributions=(*current.contributions, entry))
    return replace(cohort, round=current).with_rank(rank, replace(state.contribute(), after=current.index))


def _caught_up(cohort: CoordinatorState, rank: int) -> CoordinatorState:
    """A rank has taken the state of one that was a step ahead."""
    ahead = max(cohort.ranks[r].steps for r in cohort.live)
    state = cohort.ranks[rank]
    queue = tuple(chunk.advance(ahead - state.steps) for chunk in state.queue)
    state = replace(state, steps=ahead, queue=tuple(c for c in queue if c.steps), after=cohort.rounds - 1)
    return cohort.with_rank(rank, state)


def advance(cohort: CoordinatorState, at: float) -> tuple[CoordinatorState, tuple[Output, ...]]:
    """Go to the next stage once nobody is waited for."""
    current = cohort.round
    assert current is not None
    if current.waiting or current.stage == "reduce":
        return cohort, ()
    if cohort.shares:
        return replace(cohort, round=None), ()  # the cohort agrees on its state, which `recovery` has asked for
    if current.stage == "collect" and not cohort.world.blocking:
        if not any(entry.samples for entry in current.contributions):
            return _give_up(cohort), ()  # whoever had trained is lost: there is nothing to weigh
        # By rank, not as they arrived: a sum of floats depends on its order.
        brought = sorted(current.contributions, key=lambda entry: entry.rank)
        members = tuple(entry.rank for entry in brought)
        samples = tuple(entry.samples for entry in brought)
        cohort = replace(cohort, round=replace(current, stage="reduce", since=at))
        return cohort, (Reduce(current.index, members, samples, "all snapshots are there"),)
    if current.stage in ("apply", "adopt"):
        return _close(cohort, at)
    return _settle(cohort, at)


def _settle(cohort: CoordinatorState, at: float) -> tuple[CoordinatorState, tuple[Output, ...]]:
    """All have answered, or are gone: the round is whole, is missing on some ranks, or has failed."""
    current = cohort.round
    assert current is not None
    holders = [entry.rank for entry in current.contributions if cohort.ranks[entry.rank].alive]
    missed = [rank for rank in current.failed if cohort.ranks[rank].alive]
    if holders and not missed:
        return _close(cohort, at)
    if holders:
        reason = f"rank {missed[0]} missed it"
        return replace(cohort, round=replace(current, stage="share", waiting=(holders[0],))), (
            SendState(holders[0], current.index, reason),
        )
    if all(cohort.ranks[rank].alive for rank in current.members):
        if cohort.retries == RETRIES:
            return cohort, (Abort("failed", f"replicas could not be averaged: {cohort.cause}"),)
        cohort = replace(cohort, retries=cohort.retries + 1)
    return _give_up(cohort), ()


def _close(cohort: CoordinatorState, at: float) -> tuple[CoordinatorState, tuple[Output, ...]]:
    current = cohort.round
    assert current is not None
    trained = [(entry.rank, entry.trained) for entry in current.contributions]
    if cohort.world.blocking:
        # The collective came to its end, so it held the replicas of members that died right after it, too.
        for rank in (r for r in current.members if not cohort.ranks[r].alive):
            trained.append((rank, cohort.ranks[rank].trained))
            cohort = cohort.with_rank(rank, cohort.ranks[rank].contribute())
    lines: list[Output] = []
    for rank, by_epoch in trained:
        cohort, more = merge(cohort, rank, by_epoch, at)
        lines += more
    # An epoch that became complete by steps beyond those reported when the round opened is left for the next one.
    ledgers = tuple(ledger for ledger in cohort.ledgers if ledger.epoch not in current.closes)
    raised = tuple(one for one in cohort.raised if one.round > current.index)
    cohort = replace(cohort, ledgers=ledgers, round=None, retries=0, raised=raised)
    return cohort, (*lines, _closed(cohort, current, at))


def merge(
    cohort: CoordinatorState, rank: int, trained: Trained, at: float
) -> tuple[CoordinatorState, tuple[Merged, ...]]:
    """Bring what a rank trained into the model, in the ledgers and for the record."""
    for epoch, spans in trained:
        cohort = cohort.with_ledger(cohort.ledger(epoch).merge(spans))
    return cohort, tuple(Merged(at, rank, epoch, spans) for epoch, spans in trained if spans)


def _closed(cohort: CoordinatorState, current: Round, at: float) -> RoundClosed:
    brought = {entry.rank: entry for entry in current.contributions}
    idle, ranks = Contribution(-1, (), 0, 0, 0.0), range(cohort.world.size)
    stays, apart = dict(current.seconds), dict(current.divergence)
    # In a collective the last rank to arrive waits for nobody: the shortest stay is the time on the wire.
    wire, away = min(stays.values()), dict(current.away)
    samples = sum(entry.samples for entry in current.contributions)
    lost = sum(away.get(entry.rank, 0.0) * entry.samples for entry in current.contributions) / max(samples, 1)
    return RoundClosed(
        at,
        current.index,
        steps=tuple(brought.get(rank, idle).steps for rank in ranks),
        busy_s=tuple(brought.get(rank, idle).busy_s for rank in ranks),
        sync_s=wire + lost,
        wait_s=tuple(stays.get(rank, wire) - wire for rank in ranks),
        divergence=tuple(apart.get(rank, 0.0) for rank in ranks),
        starved=tuple(rank in current.starved for rank in ranks),
        lost=tuple(rank for rank in ranks if not cohort.ranks[rank].alive),
    )


def _give_up(cohort: CoordinatorState) -> CoordinatorState:
    """Undo a round that broke: what was to enter it is as before, and a new round will be due."""
    current = cohort.round
    assert current is not None
    cohort = replace(
        cohort,
        round=None,
        evaluating=tuple(owed for owed in cohort.evaluating if owed.epoch not in current.closes),
        orphaned=tuple(owed for owed in cohort.orphaned if owed.epoch not in current.closes),
    )
    for entry in current.contributions:  # of ranks that had the result, and died with it
        cohort = _free(cohort, entry.trained)
    for rank in (r for r in current.members if not cohort.ranks[r].alive):
        cohort = _give_back(cohort, rank)
    return cohort


def _give_back(cohort: CoordinatorState, rank: int) -> CoordinatorState:
    """Free what a lost rank had trained and not brought into an average."""
    state = cohort.ranks[rank]
    return _free(cohort, state.trained).with_rank(rank, state.contribute())


def _free(cohort: CoordinatorState, trained: Trained) -> CoordinatorState:
    for epoch, spans in trained:
        cohort = cohort.with_ledger(cohort.ledger(epoch).give_back(spans))
    return replace(cohort, samples=cohort.samples - sum(measure(spans) for _, spans in trained))
