"""The actions of a round (see `ddp.core.rounds.phases.TABLE`), and the figures of a closed round.

Owns how answers, losses and results are entered into the state. The table decides which action is due."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ddp.core.errors import ProtocolError
from ddp.core.messages.commands import Abort, Apply, Command, LoadState, Reduce, SendState
from ddp.core.messages.events import Averaged, AverageFailed, Event, Lost, Merged, Reduced, RoundClosed, Snapshot
from ddp.core.messages.join_events import Joined
from ddp.core.periodic import evaluation
from ddp.core.rounds.phases import Action
from ddp.core.samples.ledger import in_model
from ddp.core.samples.spans import Span, measure
from ddp.core.state.coordinator_state import CoordinatorState
from ddp.core.state.rank_state import EpochSpans, RankState
from ddp.core.state.round_state import Round
from ddp.core.values.frozen import replace
from ddp.core.values.persistent import RankSet

Output = Command | RoundClosed | Merged
Reaction = tuple[CoordinatorState, tuple[Output, ...]]
RETRIES = 1
"""How often in a row a collective may break without the loss of a rank."""


def holders(cohort: CoordinatorState) -> tuple[int, ...]:
    """Return the ranks that have the result of the collective."""
    return tuple([state.rank for state in cohort.current.contributions if cohort.ranks[state.rank].alive])


def missed(cohort: CoordinatorState) -> tuple[int, ...]:
    """Return the ranks that lack it."""
    return tuple([rank for rank in cohort.current.failed if cohort.ranks[rank].alive])


def joining(cohort: CoordinatorState) -> tuple[int, ...]:
    """Return the ranks that join in this round and are still ready."""
    return tuple(rank for rank in cohort.current.joining if rank in cohort.joiners)


def _request(cohort: CoordinatorState, event: Any) -> Reaction:
    source, current = holders(cohort)[0], cohort.current
    order = SendState(source, current.index, f"rank {missed(cohort)[0]} missed it")
    return cohort.with_round(waiting=RankSet((source,))), (order,)


def _offer(cohort: CoordinatorState, event: Any) -> Reaction:
    behind, back, current = missed(cohort), joining(cohort), cohort.current
    orders: list[Output] = []
    for rank in behind:
        owed = tuple(o for o in cohort.ranks[rank].owed if o.epoch in current.closes)
        orders += [LoadState(rank, current.index, "the others have it"), *evaluation.orders(owed)]
    orders += [LoadState(rank, current.index, "it was started again", joins=True) for rank in back]
    return cohort.with_round(waiting=RankSet((*behind, *back))), tuple(orders)


def _admit(cohort: CoordinatorState, event: Joined) -> Reaction:
    """Count a rank in that has loaded the others' state. It gets a part of the next window, which is set anew."""
    old, rank, index = cohort.ranks[event.rank], event.rank, cohort.current.index
    assert not old.trained, f"rank {rank} has left {old.trained}"
    # where gradients are averaged in steps, it is at the sender's step
    steps = max(cohort.ranks[r].steps for r in cohort.live) if cohort.shares else 0
    state = RankState(rank, life=old.life, offered=old.offered, digest=old.digest, steps=steps, after=index)
    cohort = cohort.with_rank(rank, state)
    return replace(cohort, joiners=cohort.joiners.remove(rank), group=()).with_window(()), ()


def _contribute(cohort: CoordinatorState, event: Snapshot | Averaged) -> Reaction:
    state, index = cohort.ranks[event.rank], cohort.current.index
    if event.steps != state.steps:
        raise ProtocolError(
            f"rank {event.rank} contributed {event.steps} steps to round {index}, {state.steps} were reported"
        )
    current = cohort.current
    answers = current.answers.add(event) if isinstance(event, Averaged) else current.answers
    current = replace(current, contributions=current.contributions.add(state), answers=answers)
    return cohort.with_rank(event.rank, state.contribute(index), round=current), ()


def _acknowledge(cohort: CoordinatorState, event: Averaged) -> Reaction:
    return cohort.with_round(answers=cohort.current.answers.add(event)), ()


def _loaded(cohort: CoordinatorState, event: Averaged) -> Reaction:
    """Record that a rank has loaded a state; where gradients are averaged in steps, that of a rank one step ahead."""
    if not cohort.shares:
        return _contribute(cohort, event)
    ahead, state = max(cohort.ranks[r].steps for r in cohort.live), cohort.ranks[event.rank]
    queue = tuple(chunk.advance(ahead - state.steps) for chunk in state.queue)
    left = tuple(chunk for chunk in queue if chunk.steps)
    queued = sum(chunk.steps for chunk in left)
    state = replace(state, steps=ahead, queue=left, queued=queued, after=cohort.rounds - 1)
    return cohort.with_rank(event.rank, state), ()


def _note_failure(cohort: CoordinatorState, event: AverageFailed) -> Reaction:
    return cohort.with_round(failed=(*cohort.current.failed, event.rank)), ()


def _average(cohort: CoordinatorState, event: Any) -> Reaction:
    # Sorted by rank, not by arrival: a sum of floats depends on its order.
    states = sorted(cohort.current.contributions, key=lambda state: state.rank)
    members, samples = tuple(state.rank for state in states), tuple(state.samples for state in states)
    return cohort, (Reduce(cohort.current.index, members, samples, "all snapshots are there"),)


def _hand_out(cohort: CoordinatorState, event: Reduced) -> Reaction:
    live = tuple(rank for rank in cohort.current.members if cohort.ranks[rank].alive)
    commands = tuple(Apply(rank, event.round, "the average is there") for rank in live)
    cohort = cohort.with_round(waiting=RankSet(live), reduce_s=event.seconds)
    cohort, evaluations = evaluation.evaluate(cohort, cohort.current.closes)
    return cohort, (*commands, *evaluations)


def _release(cohort: CoordinatorState, event: Lost) -> Reaction:
    """Free the samples that a lost rank had trained and not contributed to an average."""
    state = cohort.ranks[event.rank]
    return _free(cohort, state.trained).with_rank(event.rank, state.contribute()), ()


def _leave_out(cohort: CoordinatorState, event: Lost) -> Reaction:
    """Leave out a lost rank that has not contributed. Its samples miss the average, so no epoch is complete with it."""
    current = cohort.current
    if all(state.rank != event.rank for state in current.contributions):
        cohort = cohort.with_round(closes=(), members=current.members.remove(event.rank))
    return _release(cohort, event)


def _suspend(cohort: CoordinatorState, event: Lost) -> Reaction:
    """Wait for the other ranks' answers, which tell whether the lost rank's replica entered the collective."""
    contributed = any(state.rank == event.rank for state in cohort.current.contributions)
    return _release(cohort, event) if contributed or event.rank not in cohort.current.members else (cohort, ())


def _close(cohort: CoordinatorState, event: Event) -> Reaction:
    current = cohort.current
    trained = [(state.rank, state.trained) for state in current.contributions]
    if cohort.world.blocking:
        # The collective completed, so it included the replicas of members that were lost right afterwards.
        lost = (
            [] if len(cohort.live) == cohort.world.size else [r for r in current.members if not cohort.ranks[r].alive]
        )
        for rank in lost:
            trained.append((rank, cohort.ranks[rank].trained))
            cohort = cohort.with_rank(rank, cohort.ranks[rank].contribute())
    cohort, lines = merge(cohort, trained, event.at)
    # An epoch completed by steps that were reported after the round opened is closed by the next round.
    ledgers = tuple(ledger for ledger in cohort.ledgers if ledger.epoch not in current.closes)
    raised = tuple(entry for entry in cohort.raised if entry.round > current.index)
    cohort = replace(cohort, ledgers=ledgers, retries=0, raised=raised, undone=False)
    return cohort, (*lines, _closed(cohort, current, event.at))


def merge(
    cohort: CoordinatorState, trained: Sequence[tuple[int, EpochSpans]], at: float
) -> tuple[CoordinatorState, tuple[Merged, ...]]:
    """Mark what ranks trained as in the model, in the ledgers; return a record for each rank and epoch."""
    by_epoch: dict[int, list[Span]] = {}
    for _, own in trained:
        for epoch, spans in own:
            by_epoch.setdefault(epoch, []).extend(spans)
    for epoch, together in by_epoch.items():
        cohort = cohort.with_ledger(cohort.ledger(epoch).merge(tuple(together)))
    return cohort, tuple(Merged(at, rank, epoch, spans) for rank, own in trained for epoch, spans in own if spans)


def _closed(cohort: CoordinatorState, current: Round, at: float) -> RoundClosed:
    states = {state.rank: state for state in current.contributions}
    answers = {answer.rank: answer for answer in current.answers}
    ranks, nothing = range(cohort.world.size), RankState()
    by_rank = [states.get(rank, nothing) for rank in ranks]
    # The last rank to enter a collective waits for nobody, so the shortest stay is the transfer time.
    failed, starved = set(current.failed), set(current.starved)
    entered = [rank for rank in answers if cohort.world.blocking and rank not in failed]
    stays = {rank: answers[rank].seconds for rank in entered}
    wire = min(stays.values(), default=current.reduce_s)
    samples = sum([state.samples for state in by_rank])
    away = [answers[state.rank].away_s * state.samples for state in current.contributions if state.rank in answers]
    return RoundClosed(
        at,
        current.index,
        steps=tuple([state.steps for state in by_rank]),
        busy_s=tuple([state.busy_s for state in by_rank]),
        sync_s=wire + sum(away) / max(samples, 1),
        wait_s=tuple([stays.get(rank, wire) - wire for rank in ranks]),
        divergence=tuple([answers[rank].divergence or 0.0 if rank in answers else 0.0 for rank in ranks]),
        starved=tuple([rank in starved for rank in ranks]),
        lost=tuple([state.rank for state in cohort.ranks if not state.alive]),
        lr=max([state.lr for state in by_rank if state.steps or not samples]),
        samples=in_model(cohort.begun, cohort.ledgers, cohort.world.samples),
        loss=sum([state.loss_sum for state in by_rank]) / samples if samples else None,
        spread=sum([answers[rank].distance or 0.0 for rank in sorted(answers)]),  # in a fixed order, not by arrival
    )


def _undo(cohort: CoordinatorState, event: Event) -> Reaction:
    """Undo a broken round: its contributions are as before, and a new round will be due."""
    current = cohort.current
    met = cohort.world.blocking and not current.joining  # else the rank that was to send its state is lost
    cohort = replace(cohort, undone=cohort.undone or met)
    if met and all(cohort.ranks[rank].alive for rank in current.members):
        if cohort.retries == RETRIES:
            return cohort, (Abort("failed", f"replicas could not be averaged: {cohort.cause}"),)
        cohort = replace(cohort, retries=cohort.retries + 1)
    for rank, state in enumerate(cohort.ranks):
        if owed := tuple(part for part in state.owed if part.epoch in current.closes):
            left = tuple(part for part in state.owed if part not in owed)
            cohort = cohort.with_rank(rank, replace(state, owed=left))
    cohort = replace(cohort, orphaned=tuple(part for part in cohort.orphaned if part.epoch not in current.closes))
    for state in current.contributions:  # of ranks that had the result, and were lost with it
        cohort = _free(cohort, state.trained)
    for rank in (r for r in current.members if not cohort.ranks[r].alive):
        cohort, _ = _release(cohort, Lost(event.at, rank, ""))
    return cohort, ()


def _free(cohort: CoordinatorState, trained: EpochSpans) -> CoordinatorState:
    for epoch, spans in trained:
        cohort = cohort.with_ledger(cohort.ledger(epoch).give_back(spans))
    return replace(cohort, samples=cohort.samples - sum(measure(spans) for _, spans in trained))


ACTIONS: dict[Action, Callable[[CoordinatorState, Any], Reaction]] = {
    Action.REQUEST: _request,
    Action.OFFER: _offer,
    Action.CONTRIBUTE: _contribute,
    Action.ACKNOWLEDGE: _acknowledge,
    Action.LOADED: _loaded,
    Action.ADMIT: _admit,
    Action.NOTE_FAILURE: _note_failure,
    Action.AVERAGE: _average,
    Action.HAND_OUT: _hand_out,
    Action.RELEASE: _release,
    Action.LEAVE_OUT: _leave_out,
    Action.SUSPEND: _suspend,
    Action.CLOSE: _close,
    Action.UNDO: _undo,
    Action.RESUME: lambda cohort, event: (cohort, ()),
}
