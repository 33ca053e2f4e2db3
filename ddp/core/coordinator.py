"""The coordinator: a state machine from events to commands. Pure; the runtime and the simulator run the same one.

It keeps the state of all ranks (`cohort`), grants work (`dispatch`), averages replicas (`rounds`) and asks the policy for a
plan. The policy decides when replicas are averaged."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, cast

from ddp.core import event_batch
from ddp.core.errors import ProtocolError
from ddp.core.grants import pacing
from ddp.core.grants.dispatch import begin_window, dispatch
from ddp.core.grants.shared_grants import shorten
from ddp.core.membership import joining, timeouts
from ddp.core.membership.recovery import distrust, lose, recover, settle
from ddp.core.messages import events
from ddp.core.messages.commands import ORDERS, Abort, Command, CoordinatorCheckpoint, Plan, RankCommand, Stop
from ddp.core.messages.join_events import Joined, Joining, Left, Offered
from ddp.core.periodic import checkpoint_schedule, evaluation
from ddp.core.policies import Policy
from ddp.core.rounds import rounds
from ddp.core.settings.world import World
from ddp.core.state.coordinator_state import CoordinatorState, Mark
from ddp.core.state.extremes import Recent
from ddp.core.state.rank_state import LastHeard, RankState
from ddp.core.values.frozen import replace, value
from ddp.core.values.persistent import RankSet, Row

Output = Command | events.PolicyEvent | events.PolicyRecord | events.Merged
"""Commands to execute; and records: events for policies, records of policies, and merged samples."""


@value(frozen=True)
class Coordinator:
    """State of the coordinator. `update` returns the next state."""

    policy: Policy
    cohort: CoordinatorState
    policy_state: Any = None
    plan: Plan | None = None
    """None until every rank is ready."""
    resumed: CoordinatorCheckpoint | None = None
    """The coordinator's state in the checkpoint that the run resumes from."""
    over: bool = False
    """Whether nothing is left to do: all ranks have finished, or the run was aborted."""

    @staticmethod
    def start(policy: Policy, world: World, at: float, resumed: CoordinatorCheckpoint | None = None) -> Coordinator:
        """Return the state before any rank has reported. If `world.samples` is 0, the first rank to report sets it.

        `resumed`: state in the checkpoint that the ranks have loaded."""
        absent = world.size - world.absent  # absent ranks are the last ones
        ranks = Row(RankState(rank, alive=rank < absent) for rank in range(world.size))
        cohort = (
            CoordinatorState.start(world, ranks)
            if resumed is None
            else checkpoint_schedule.reopen(world, ranks, resumed)
        )
        heard = Row([LastHeard(at)] * world.size)
        return Coordinator(policy, replace(cohort, offers=world.spares, last_heard=heard), resumed=resumed)

    def update(self, event: events.Event) -> tuple[Coordinator, tuple[Output, ...]]:
        """React to one event; return the next state and its outputs.

        Raises ProtocolError, naming event and state, for an event that does not fit the state. Where losses are tolerated,
        its rank is given up instead."""
        if self.over:
            return self, ()
        entered, count = self.enter((event,))
        return (entered, ()) if count else self.decide(event)

    def enter(self, reports: Sequence[events.Event], first: int = 0) -> tuple[Coordinator, int]:
        """Process `reports` from index `first` on, as long as they need no decision: a fast path with the result of
        `update`.

        Return the next state and the number of events processed: 0 if the first one needs a decision (`update`)."""
        if self.plan is None or self.over:
            return self, 0
        cohort, count = event_batch.enter(self.cohort, self.plan, reports, first)
        return (replace(self, cohort=cohort), count) if count else (self, 0)

    def decide(self, event: events.Event) -> tuple[Coordinator, tuple[Output, ...]]:
        """React to one event by every rule: the slow path. `update` tries the fast path (`enter`) first."""
        if self.over:
            return self, ()
        try:
            cohort, outputs = _apply(self.cohort, event)
        except ProtocolError as error:
            if isinstance(event, events.OfNoRank) or not self.cohort.world.tolerate_loss:
                raise
            cohort, outputs = distrust(self.cohort, event, str(error))
        self = replace(self, cohort=cohort)
        if isinstance(event, Joined):
            self, outputs = self._admit(event.rank, outputs)
        return self._run_rules(event.at, outputs)

    def _admit(self, rank: int, outputs: tuple[Output, ...]) -> tuple[Coordinator, tuple[Output, ...]]:
        """Add a rank that has joined to the plan, if the policy's plan has no part for it."""
        if self.plan is None or self.plan.counts[rank] or not self.cohort.ranks[rank].alive:
            return self, outputs
        plan = self.plan.admit(rank)
        return replace(self, plan=plan, cohort=self.cohort.under(plan)), (*outputs, plan)

    def _run_rules(self, at: float, outputs: tuple[Output, ...]) -> tuple[Coordinator, tuple[Output, ...]]:
        """Do whatever is now possible: consult the policy, grant work, open a round, stop."""
        self, issued = self._consult(outputs) if outputs else (self, outputs)
        if self.cohort.savings:
            cohort, published = checkpoint_schedule.settle(self.cohort, self.plan, self.policy_state, issued)
            self, issued = replace(self, cohort=cohort), (*issued, *published)
        if _of(Abort, issued):
            return replace(self, over=True), issued
        if not self.cohort.ready or self.cohort.stopping:
            return replace(self, over=_all_finished(self.cohort)), issued
        if self.plan is None:
            self, plan = self._plan(at)
            issued = (*issued, plan)
        self, issued = self._issue(at, issued)
        if _of(Abort, issued):
            return replace(self, over=True), issued
        return replace(self, cohort=_ordered(self.cohort, issued, at)) if issued else self, issued

    def _plan(self, at: float) -> tuple[Coordinator, Plan]:
        """Return the policy's first plan, or the one of the checkpoint."""
        state, plan = self.policy.init(self.cohort.world)
        if self.resumed is not None and self.resumed.plan is not None:
            state, plan = self.resumed.policy_state, self.resumed.plan
        mark = Mark(at, self.cohort.complete, checkpoint_schedule.averages(self.cohort, plan))
        cohort = replace(self.cohort, saved=mark).under(plan)
        return replace(self, policy_state=state, plan=plan, cohort=cohort), plan

    def _issue(self, at: float, issued: tuple[Output, ...]) -> tuple[Coordinator, tuple[Output, ...]]:
        """Form groups, grant work, open a round if one is due and grant the work that follows it; stop at the end."""
        plan, cohort = self.plan, self.cohort
        assert plan is not None
        cohort, starts = joining.accept(cohort, at)
        cohort, orders = recover(cohort, at)
        cohort, evaluations = _close_epochs(cohort, at)
        saves: tuple[Output, ...] = ()
        if cohort.world.checkpoints is not None and (
            checkpoint_schedule.handed_out(issued) or (plan.in_step and not cohort.shares and cohort.round is None)
        ):
            cohort, saves = checkpoint_schedule.begin(cohort, plan, at, turn=False)
        cohort, ends = shorten(cohort, at)
        cohort, grants = dispatch(cohort, plan)
        cohort, paces = pacing.correct(cohort, plan, at, grants)
        issued = (*issued, *starts, *orders, *evaluations, *saves, *ends, *grants, *paces)
        if reason := rounds.due(cohort, plan):
            cohort, averages = rounds.open_round(cohort, plan, reason, at)
            saves = ()
            if cohort.world.blocking:
                cohort, saves = checkpoint_schedule.begin(cohort, plan, at, rounds.in_turn(cohort, plan))
            cohort, grants = dispatch(begin_window(cohort, plan), plan)
            issued = (*issued, *averages, *saves, *grants)
        if _trained_out(cohort) and cohort.orphaned:
            cohort, evaluations = evaluation.adopt(cohort)
            issued = (*issued, *evaluations)
        if _trained_out(cohort):
            stops = tuple(Stop(rank, "all epochs are trained and evaluated") for rank in cohort.live)
            cohort, issued = replace(cohort, stopping=True), (*issued, *stops)
        return replace(self, cohort=cohort), issued

    def _consult(self, outputs: tuple[Output, ...]) -> tuple[Coordinator, tuple[Output, ...]]:
        """Pass the policy the events meant for it; a new plan takes effect at once."""
        if not _of(events.RoundClosed, outputs):
            return self, outputs
        state, plan, cohort = self.policy_state, self.plan, self.cohort
        issued: list[Output] = []
        for output in outputs:
            issued.append(output)
            if type(output) is events.RoundClosed:
                state, records = self.policy.update(state, output)
                issued += records
                plan = next((order for order in reversed(records) if isinstance(order, Plan)), plan)
        # With an unchanged plan, derived fields change only once there is another window.
        if plan is not None and (plan is not self.plan or not cohort.window):
            cohort = cohort.under(plan)
        return replace(self, policy_state=state, plan=plan, cohort=cohort), tuple(issued)


def _apply(cohort: CoordinatorState, event: events.Event) -> tuple[CoordinatorState, tuple[Output, ...]]:
    """Update the state with an event."""
    if not isinstance(event, events.OfNoRank) and not cohort.ranks[event.rank].alive:
        back = cohort.ranks[event.rank].coming  # else it is the last message of a rank that was given up
        return joining.hear(_heard(cohort, event), event) if back else (cohort, ())
    if isinstance(event, events.Progress):
        return _on_progress(cohort, event)
    cohort = _heard(cohort, event)
    match event:
        case events.Ready():
            return joining.ready(cohort, event)
        case events.Snapshot() | events.Reduced() | events.Averaged() | events.AverageFailed() | events.Shared():
            return rounds.react(cohort, event)
        case Left():
            return joining.leave(cohort, event), ()
        case Joining() | Joined():
            raise ProtocolError(f"rank {event.rank} was never away: {event}")
        case events.Evaluated():
            return evaluation.on_evaluated(cohort, event), ()
        case events.Saved():
            return checkpoint_schedule.on_saved(cohort, event), ()
        case events.Alive() | events.Trained():
            return cohort, ()
        case events.Finished():
            return cohort.with_rank(event.rank, replace(cohort.ranks[event.rank], finished=True)), ()
        case events.Failed() if event.of_all:
            return cohort, (Abort("failed", f"all ranks: {event.error}"),)
        case events.Failed():
            return lose(cohort, event.rank, event.at, event.error, event.origin)
        case events.Lost():
            return lose(cohort, event.rank, event.at, event.reason)
        case Offered():
            return replace(cohort, offers=cohort.offers + 1), ()
        case events.Ending():
            return checkpoint_schedule.hasten(cohort, event.at), ()
    return timeouts.give_up(cohort, event)


def _heard(cohort: CoordinatorState, event: events.Event) -> CoordinatorState:
    """Note when each rank was last heard, and when something last moved."""
    if isinstance(event, events.Alive):
        return cohort.seen((event.rank,), event.at)
    if isinstance(event, (events.Tick, events.Ending, Offered)):
        return cohort
    if isinstance(event, events.Reduced):
        return replace(cohort, moved=event.at)
    return replace(cohort, **_reported(cohort, event.rank, event.at))


def _reported(cohort: CoordinatorState, rank: int, at: float) -> dict[str, Any]:
    """Return the fields that change as a rank reports."""
    heard = cohort.last_heard.put(rank, LastHeard(at, at))
    recent = cohort.recent
    same = recent.at == at
    recent = replace(recent, rank=rank, ranks=recent.ranks.add(rank)) if same else Recent(at, rank, RankSet((rank,)))
    return {"last_heard": heard, "moved": at, "oldest": min(cohort.oldest, at), "recent": recent}


def _on_progress(cohort: CoordinatorState, event: events.Progress) -> tuple[CoordinatorState, tuple[Output, ...]]:
    state = cohort.ranks[event.rank]
    if event.steps > _granted(state, event.epoch, event.steps):
        raise ProtocolError(f"{event} reports more than rank {event.rank} was granted: {state.queue}")
    if event.after not in (None, state.after):
        raise ProtocolError(f"rank {event.rank} never said that it was done with round {event.after}: {event}")
    state, samples = state.train(event.steps, bool(cohort.shares), event.busy_s, event.loss_sum or 0.0, event.lr)
    if samples != event.samples:
        raise ProtocolError(f"rank {event.rank} was granted {samples} samples in these steps: {event}")
    heard = _reported(cohort, event.rank, event.at)
    cohort = cohort.with_rank(event.rank, state, samples=cohort.samples + samples, **heard)
    if cohort.shares:  # the remaining ranks have met in a step since
        raised = tuple(entry for entry in cohort.raised if entry.generation >= cohort.generation)
        cohort = replace(cohort, retries=0, raised=raised)
    if event.loss_sum is None:
        return cohort, (Abort("diverged", f"the training loss of rank {event.rank} is not finite"),)
    return cohort, ()


def _granted(state: RankState, epoch: int, steps: int) -> int:
    """Return the steps of `epoch` that come first in the rank's queue; of its first grant alone if these are enough."""
    if state.queue and state.queue[0].epoch == epoch and (first := state.queue[0].steps) >= steps:
        return first
    return sum(chunk.steps for chunk in takewhile(lambda chunk: chunk.epoch == epoch, state.queue))


def _close_epochs(cohort: CoordinatorState, at: float) -> tuple[CoordinatorState, tuple[Output, ...]]:
    """Order the evaluation of epochs that no round closed: all samples are in the model while all ranks are idle."""
    lines: tuple[Output, ...] = ()
    if cohort.totals.working or cohort.round is not None:
        return cohort, ()
    if cohort.shares and not cohort.broken:
        cohort, lines = settle(cohort, at)
    done = cohort.first_epochs(lambda ledger: ledger.complete)
    if not done or cohort.totals.trained:
        return cohort, lines
    ledgers = cohort.ledgers[len(done) :]
    cohort, orders = evaluation.evaluate(replace(cohort, ledgers=ledgers), done)
    return cohort, (*lines, *orders)


def _ordered(cohort: CoordinatorState, issued: tuple[Output, ...], at: float) -> CoordinatorState:
    """Measure a rank's silence from its last order, and a standstill from the last order to any rank."""
    orders = cast(list[RankCommand], [order for order in issued if type(order) in ORDERS])
    ordered = {order.rank for order in orders}
    return cohort.seen(ordered, at, moved=at) if ordered else cohort


def _of(kind: type[Output], outputs: Sequence[Output]) -> bool:
    """Return whether any of `outputs` is of type `kind`."""
    return kind in map(type, outputs)


def _trained_out(cohort: CoordinatorState) -> bool:
    nothing_left = not cohort.ledgers and cohort.round is None and not cohort.totals.owed
    return nothing_left and cohort.begun == cohort.world.epochs


def _all_finished(cohort: CoordinatorState) -> bool:
    return cohort.stopping and not cohort.totals.unfinished
