"""Rounds: when the replicas are brought together, and the stages of doing so. The same for every policy.

On a blocking backend a round is one stage (`collect`: ranks meet in a collective). Otherwise ranks lay down snapshots
(`collect`), the coordinator's process averages them (`reduce`), and ranks add the difference (`apply`).
"""

from __future__ import annotations

from dataclasses import replace

from ddp.core.cohort import Cohort, Contribution, Round
from ddp.core.commands import Abort, Apply, Average, Command, Evaluate, Plan, Reduce
from ddp.core.dispatch import starved
from ddp.core.errors import ProtocolError
from ddp.core.events import Averaged, AverageFailed, Reduced, RoundClosed, Snapshot

Output = Command | RoundClosed

IN_STEP = -1
"""The round that a failed gradient exchange inside a step is reported under."""


def due(cohort: Cohort, plan: Plan) -> str:
    """Why a round is due now; empty if none is. To be asked after a dispatch."""
    live = cohort.live
    if cohort.round is not None or plan.in_step or not any(cohort.ranks[r].steps for r in live):
        return ""
    if cohort.ledgers and cohort.fully_trained(cohort.ledgers[0].epoch):
        return f"epoch {cohort.ledgers[0].epoch} is trained"
    if all(cohort.ranks[r].steps >= cohort.window[r] or starved(cohort, plan, r) for r in live):
        return "every rank has done its share of the window"
    return ""


def open_round(cohort: Cohort, reason: str) -> tuple[Cohort, tuple[Command, ...]]:
    """Order all live ranks to average."""
    index, members = cohort.rounds, cohort.live
    # The order carries the evaluation along, so it must be known now which epochs are complete with this round.
    closes = tuple(ledger.epoch for ledger in cohort.ledgers if cohort.fully_trained(ledger.epoch))
    idle = tuple(rank for rank in members if not cohort.ranks[rank].queue)
    current = Round(index, members, "collect", members, closes, starved=idle)
    cohort = replace(cohort, round=current, rounds=index + 1)
    commands: list[Command] = [Average(rank, index, members, reason) for rank in members]
    if cohort.world.blocking:
        cohort, evaluations = evaluate(cohort, closes)
        commands += evaluations
    return cohort, tuple(commands)


def evaluate(cohort: Cohort, epochs: tuple[int, ...]) -> tuple[Cohort, tuple[Command, ...]]:
    """Order the evaluation of the model at the end of `epochs`, the test set split over the live ranks."""
    live = cohort.live
    commands = tuple(
        Evaluate(rank, epoch, part, len(live), f"epoch {epoch} is complete")
        for epoch in epochs
        for part, rank in enumerate(live)
    )
    owed = tuple((order.epoch, order.rank) for order in commands)
    return replace(cohort, evaluating=(*cohort.evaluating, *owed)), commands


def on_snapshot(cohort: Cohort, event: Snapshot) -> tuple[Cohort, tuple[Output, ...]]:
    """A rank's contribution lies in shared memory."""
    _expect(cohort, event, "collect")
    return _advance(_contribute(cohort, event.rank, event.steps), at=event.at)


def on_reduced(cohort: Cohort, event: Reduced) -> tuple[Cohort, tuple[Output, ...]]:
    """The average of the snapshots is there; hand it out."""
    current = _expect(cohort, event, "reduce")
    live = tuple(rank for rank in current.members if cohort.ranks[rank].alive)
    current = replace(current, stage="apply", waiting=live, seconds=((-1, event.seconds),))
    cohort = replace(cohort, round=current)
    commands: list[Command] = [Apply(rank, event.round, "the average is there") for rank in live]
    cohort, evaluations = evaluate(cohort, current.closes)
    return cohort, (*commands, *evaluations)


def on_averaged(cohort: Cohort, event: Averaged) -> tuple[Cohort, tuple[Output, ...]]:
    """A rank holds the average."""
    blocking = cohort.world.blocking
    current = _expect(cohort, event, "collect" if blocking else "apply")
    seconds = (*current.seconds, (event.rank, event.seconds)) if blocking else current.seconds
    if event.divergence is None:
        return cohort, (Abort("diverged", f"the parameters of rank {event.rank} are not finite"),)
    current = replace(current, seconds=seconds, divergence=(*current.divergence, (event.rank, event.divergence)))
    cohort = replace(cohort, round=current)
    done = (
        _contribute(cohort, event.rank, event.steps) if blocking else replace(cohort, round=current.without(event.rank))
    )
    return _advance(done, at=event.at)


def on_failed(cohort: Cohort, event: AverageFailed) -> tuple[Cohort, tuple[Output, ...]]:
    """A collective broke on a rank; the round is given up once all have said so."""
    if event.round == IN_STEP:
        cohort = replace(cohort, broken=(*cohort.broken, event.rank))
        # Else whoever broke it is about to be reported lost, and is to be named.
        everywhere = set(cohort.broken) >= set(cohort.live)
        return cohort, (Abort("failed", f"gradients could not be exchanged: {event.error}"),) if everywhere else ()
    current = _expect(cohort, event, "collect").without(event.rank)
    # The evaluation that was to follow is off, too.
    owed = tuple(
        (epoch, rank) for epoch, rank in cohort.evaluating if rank != event.rank or epoch not in current.closes
    )
    current = replace(current, failed=(*current.failed, event.rank), error=event.error)
    cohort = replace(cohort, round=current, evaluating=owed)
    return _advance(cohort, at=event.at)


def on_lost(cohort: Cohort, rank: int, at: float) -> tuple[Cohort, tuple[Output, ...]]:
    """A rank is gone. What it had trained is free again, unless it went into an average."""
    current = cohort.round
    awaited = current is not None and rank in current.waiting
    if not (awaited and cohort.world.blocking):
        # In a collective the others' answers will tell whether its replica went in.
        cohort = _give_back(cohort, rank)
    if current is None or not awaited:
        return cohort, ()
    if current.stage == "collect" and not cohort.world.blocking:
        # Its samples miss the average, so no epoch is complete with it.
        current = replace(current, closes=(), members=tuple(r for r in current.members if r != rank))
    return _advance(replace(cohort, round=current.without(rank)), at=at)


def _expect(cohort: Cohort, event: Snapshot | Reduced | Averaged | AverageFailed, stage: str) -> Round:
    """The round in flight, if `event` belongs to it now; else the one error that names both."""
    current = cohort.round
    fits = current is not None and current.index == event.round and current.stage == stage
    if fits and current is not None and (isinstance(event, Reduced) or event.rank in current.waiting):
        return current
    raise ProtocolError(f"{event} does not fit the round in flight: {current}")


def _contribute(cohort: Cohort, rank: int, steps: int) -> Cohort:
    state, current = cohort.ranks[rank], cohort.round
    assert current is not None
    if steps != state.steps:
        raise ProtocolError(
            f"rank {rank} contributed {steps} steps to round {current.index}, {state.steps} were reported"
        )
    entry = Contribution(rank, state.trained, state.steps, state.samples, state.busy_s)
    current = replace(current.without(rank), contributions=(*current.contributions, entry))
    return replace(cohort, round=current).with_rank(rank, state.contribute())


def _advance(cohort: Cohort, at: float) -> tuple[Cohort, tuple[Output, ...]]:
    """Go to the next stage once nobody is waited for."""
    current = cohort.round
    assert current is not None
    if current.waiting or current.stage == "reduce":
        return cohort, ()
    if not current.contributions:
        if all(cohort.ranks[rank].alive for rank in current.members):
            # Nobody is gone, so it would break again.
            return cohort, (Abort("failed", f"replicas could not be averaged: {current.error}"),)
        return _give_up(cohort), ()
    if current.failed:
        raise ProtocolError(f"round {current.index} succeeded on some ranks and broke on {current.failed}")
    if current.stage == "collect" and not cohort.world.blocking:
        members = tuple(entry.rank for entry in current.contributions)
        samples = tuple(entry.samples for entry in current.contributions)
        cohort = replace(cohort, round=replace(current, stage="reduce", since=at))
        return cohort, (Reduce(current.index, members, samples, "all snapshots are there"),)
    return _close(cohort, at)


def _close(cohort: Cohort, at: float) -> tuple[Cohort, tuple[Output, ...]]:
    current = cohort.round
    assert current is not None
    trained = [entry.trained for entry in current.contributions]
    if cohort.world.blocking:
        # The collective came to its end, so it held the replicas of members that died right after it, too.
        for rank in (r for r in current.members if not cohort.ranks[r].alive):
            trained.append(cohort.ranks[rank].trained)
            cohort = cohort.with_rank(rank, cohort.ranks[rank].contribute())
    for by_epoch in trained:
        for epoch, spans in by_epoch:
            cohort = cohort.with_ledger(cohort.ledger(epoch).merge(spans))
    # An epoch that became complete by steps beyond those reported when the round opened is left for the next one.
    ledgers = tuple(ledger for ledger in cohort.ledgers if ledger.epoch not in current.closes)
    return replace(cohort, ledgers=ledgers, round=None), (_closed(cohort, current, at),)


def _closed(cohort: Cohort, current: Round, at: float) -> RoundClosed:
    brought = {entry.rank: entry for entry in current.contributions}
    idle, ranks = Contribution(-1, (), 0, 0, 0.0), range(cohort.world.size)
    stays, apart = dict(current.seconds), dict(current.divergence)
    # In a collective the last rank to arrive waits for nobody: the shortest stay is the time on the wire.
    wire = min(stays.values())
    return RoundClosed(
        at,
        current.index,
        steps=tuple(brought.get(rank, idle).steps for rank in ranks),
        busy_s=tuple(brought.get(rank, idle).busy_s for rank in ranks),
        sync_s=wire,
        wait_s=tuple(stays.get(rank, wire) - wire for rank in ranks),
        divergence=tuple(apart.get(rank, 0.0) for rank in ranks),
        starved=tuple(rank in current.starved for rank in ranks),
    )


def _give_up(cohort: Cohort) -> Cohort:
    """Undo a round that broke: what was to enter it is as before, and a new round will be due."""
    current = cohort.round
    assert current is not None
    owed = tuple(entry for entry in cohort.evaluating if entry[0] not in current.closes)
    cohort = replace(cohort, round=None, evaluating=owed)
    for rank in (r for r in current.members if not cohort.ranks[r].alive):
        cohort = _give_back(cohort, rank)
    return cohort


def _give_back(cohort: Cohort, rank: int) -> Cohort:
    """Free what a lost rank had trained and not brought into an average."""
    state = cohort.ranks[rank]
    for epoch, spans in state.trained:
        cohort = cohort.with_ledger(cohort.ledger(epoch).give_back(spans))
    return cohort.with_rank(rank, state.contribute())
