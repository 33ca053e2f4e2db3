"""Rounds: when replicas are averaged, and the state machine of a round. The same for every policy.

On a blocking backend ranks meet in a collective; if it broke on some of them, one that has the result sends it to these.
Otherwise ranks copy their replicas, the coordinator's process averages the copies, and ranks add the difference. The
transitions are data (`ddp.core.rounds.phases`); the actions are in `ddp.core.rounds.round_actions`."""

from __future__ import annotations

from ddp.core.errors import ProtocolError
from ddp.core.grants.allowance import leads_bounded, starved
from ddp.core.messages.commands import Abort, Average, Command, Plan, SendState
from ddp.core.messages.events import Averaged, AverageFailed, Lost, Reduced, Shared, Snapshot
from ddp.core.messages.join_events import Joined
from ddp.core.periodic import evaluation, sketching
from ddp.core.rounds.phases import TABLE, Action, Input
from ddp.core.rounds.round_actions import ACTIONS, Reaction, holders, missed
from ddp.core.state.coordinator_state import CoordinatorState
from ddp.core.state.round_state import Phase, Round
from ddp.core.values.frozen import replace
from ddp.core.values.persistent import RankSet

RoundEvent = Snapshot | Reduced | Averaged | AverageFailed | Shared | Joined | Lost

IN_STEP = -1
"""Round number under which a failed gradient exchange inside a step is reported."""
SLIVER = 4
"""1/SLIVER of a window is not worth a round of its own."""
SHORT = 2
"""A rank with this many steps left, or fewer, is short of work."""


def due(cohort: CoordinatorState, plan: Plan) -> str:
    """Return why a round is due now; empty: none is. Valid after a dispatch."""
    totals = cohort.totals
    if cohort.round is not None or plan.in_step or cohort.reserve:
        return ""
    if in_turn(cohort, plan):
        return "the window is granted" if totals.trained or totals.working else ""
    if not totals.trained:
        return ""
    if cohort.retries:
        return "the last one broke"
    if cohort.ledgers and cohort.fully_trained(cohort.ledgers[0].epoch):
        return f"epoch {cohort.ledgers[0].epoch} is trained"
    if totals.short:
        return ""
    # Only a bound on leads can keep a rank from its share of the window without being granted more.
    if not leads_bounded(cohort, plan) or all(
        cohort.ranks[r].steps >= cohort.window[r] or starved(cohort, plan, r) for r in cohort.live
    ):
        return "" if _ends_soon(cohort) else "every rank has done its share of the window"
    return ""


def _ends_soon(cohort: CoordinatorState) -> bool:
    """Return whether all ranks work and little is left of the oldest epoch: the round at its end will do for both."""
    oldest = cohort.ledgers[0]
    if oldest.free or cohort.totals.working < len(cohort.live):
        return False
    return cohort.in_work(oldest.epoch) * SLIVER <= sum(cohort.window)


def in_turn(cohort: CoordinatorState, plan: Plan) -> bool:
    """Return whether the order to average is sent with the window's work: before a collective, if no rank runs ahead of it.

    Not after a collective broke without the loss of a rank. All ranks are idle then, and it may have broken because of a
    long wait for a slow rank, which a whole window before the next one could repeat."""
    return cohort.world.blocking and not cohort.leads and not cohort.retries


def open_round(
    cohort: CoordinatorState, plan: Plan, reason: str, at: float
) -> tuple[CoordinatorState, tuple[Command, ...]]:
    """Order all live ranks to average."""
    index, members, turn = cohort.rounds, cohort.live, in_turn(cohort, plan)
    # The evaluation is ordered at the same time, so the epochs that this round completes must be known now.
    closes = cohort.first_epochs(lambda ledger: ledger.free == 0 if turn else cohort.fully_trained(ledger.epoch))
    short = tuple([state.rank for state in cohort.ranks if state.alive and state.queued <= SHORT])
    phase = _next(cohort, Input.DUE_COLLECTIVE if cohort.world.blocking else Input.DUE_SNAPSHOTS)[0]
    everyone = RankSet(members)
    current = Round(index, everyone, phase, everyone, closes, starved=short)
    cohort = replace(cohort, round=current, rounds=index + 1, opened=cohort.opened or at)
    done = cohort.samples / max(cohort.world.epochs * cohort.world.samples, 1)
    sketch = bool(closes) or sketching.is_drawn(index, at - cohort.opened, done)
    if turn:
        states = [state.order() for state in cohort.ranks if state.alive]
        cohort = cohort.with_ranks(zip(members, states, strict=True))
    commands: list[Command] = [Average(rank, index, members, turn, reason, sketch) for rank in members]
    if cohort.world.blocking:
        cohort, evaluations = evaluation.evaluate(cohort, closes, turn)
        commands += evaluations
    return cohort, tuple(commands)


def request_state(
    cohort: CoordinatorState, source: int, behind: tuple[int, ...], joining: tuple[int, ...], at: float
) -> tuple[CoordinatorState, tuple[Command, ...]]:
    """Order `source` to send its state to the ranks `behind` it by a step, and to restarted ranks."""
    phase, _ = _next(cohort, Input.RANK_BACK if joining else Input.RANK_BEHIND)
    # Without shared steps, this round does not depend on the other ranks.
    members = RankSet(cohort.live if cohort.shares else ())
    current = Round(cohort.rounds, members, phase, RankSet((source,)), (), failed=behind)
    current = replace(current, joining=RankSet(joining), since=at)
    cohort = replace(cohort, round=current, rounds=cohort.rounds + 1)
    reason = f"rank {behind[0]} is a step behind" if behind else f"rank {joining[0]} is back"
    return cohort, (SendState(source, current.index, reason, joins=bool(joining)),)


def react(cohort: CoordinatorState, event: RoundEvent) -> Reaction:
    """Process an answer or the loss of a rank; enter the next phase once no answer is awaited.

    Raises ProtocolError, naming event and round, if the two do not fit."""
    if isinstance(event, AverageFailed):
        if event.steps not in (None, reported := cohort.ranks[event.rank].steps):
            raise ProtocolError(f"rank {event.rank} did {event.steps} steps, {reported} were reported: {event}")
        cohort = replace(cohort, broken=cohort.broken.add(event.rank), cause=event.error)
        if event.round == IN_STEP:
            return cohort, ()
    following = _next(cohort, Input(type(event).__name__), event)
    if isinstance(event, Averaged) and event.divergence is None:
        return cohort, (Abort("diverged", f"the parameters of rank {event.rank} are not finite"),)
    if not isinstance(event, Reduced) and cohort.round is not None:
        waiting = cohort.round.waiting.remove(event.rank)
        current = replace(cohort.round, waiting=waiting)
        cohort = replace(cohort, round=current, takers=cohort.takers.add(event.rank))
    cohort, outputs = _play(cohort, *following, event)
    while (end := _end(cohort)) is not None:
        cohort, more = _play(cohort.open(), *_next(cohort, end), event)
        outputs += more
    return cohort, outputs


def _next(cohort: CoordinatorState, cause: Input, event: RoundEvent | None = None) -> tuple[Phase, Action]:
    """Return the next phase and the action from the table. The only place that rejects inputs."""
    current = cohort.round
    row = TABLE[Phase.IDLE if current is None else current.phase].get(cause)
    expected = event is None or isinstance(event, Lost) or (current is not None and current.expects(event))
    if row is None or not expected:
        raise ProtocolError(f"{event or cause} does not fit the round in flight: {current}")
    return row


def _play(cohort: CoordinatorState, phase: Phase, action: Action, event: RoundEvent) -> Reaction:
    cohort, outputs = ACTIONS[action](cohort, event)
    if phase is Phase.IDLE:
        return cohort.open(round=None), outputs
    if cohort.current.phase is phase:
        return cohort, outputs
    return cohort.open(round=replace(cohort.current, phase=phase, since=event.at)), outputs


def _end(cohort: CoordinatorState) -> Input | None:
    """Return how the phase has ended; None: answers are awaited."""
    current = cohort.round
    if current is None or current.waiting or current.phase is Phase.REDUCE:
        return None
    if current.phase is Phase.SNAPSHOTS:  # else all ranks that had trained are lost: there is nothing to average
        return Input.ALL if any(state.samples for state in current.contributions) else Input.NOBODY
    if current.phase is Phase.LOAD_STATE and (cohort.shares or current.joining):
        return Input.ALIKE
    if current.phase in (Phase.APPLY, Phase.LOAD_STATE):
        return Input.ALL
    if not holders(cohort):
        return Input.NOBODY
    return Input.SOME if missed(cohort) else Input.ALL
