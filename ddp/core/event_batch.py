"""The coordinator's fast path: events that need no decision, such as progress reports while other ranks still train.

Most events are of this kind. All that arrive at the same time are entered into one draft of the ranks. The result equals,
bit for bit, that of `Coordinator.decide` on each event. It decides nothing: an event that might need a decision is left."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ddp.core.messages.commands import Plan
from ddp.core.messages.events import Averaged, Event, Progress
from ddp.core.state.coordinator_state import CoordinatorState
from ddp.core.state.extremes import Recent
from ddp.core.state.rank_state import LastHeard, RankState
from ddp.core.state.round_state import Phase
from ddp.core.values.frozen import replace
from ddp.core.values.persistent import RankSet

KINDS = (Progress, Averaged)


def enter(
    cohort: CoordinatorState, plan: Plan, events: Sequence[Event], first: int = 0
) -> tuple[CoordinatorState, int]:
    """Return the state after as many of `events`, from index `first` on, as need no decision, and their number."""
    if not isinstance(events[first], KINDS) or not _calm(cohort, plan):
        return cohort, 0
    batch, place = EventBatch(cohort, plan), first
    while place < len(events) and batch.enter(events[place]):
        place += 1
    return (batch.close(), place - first) if place > first else (cohort, 0)


def _calm(cohort: CoordinatorState, plan: Plan) -> bool:
    """Return whether the state of the other ranks allows a report or an answer to be entered without a decision."""
    if cohort.stopping or cohort.savings or cohort.reserve or cohort.joiners or cohort.broken:
        return False
    if not cohort.world.blocking or not cohort.ledgers or cohort.totals.unready:
        return False
    current = cohort.round
    if plan.in_step:
        whole = len(cohort.group) == len(cohort.live)
        calm = whole and not cohort.raised and not cohort.retries and cohort.ending is None
        return bool(cohort.shares) and current is None and calm
    return current is not None and current.phase is Phase.COLLECTIVE and not cohort.leads and bool(cohort.window)


class EventBatch:
    """The changes of a state while such events are entered."""

    def __init__(self, cohort: CoordinatorState, plan: Plan) -> None:
        self._cohort, self._shares = cohort, bool(cohort.shares)
        self._ranks, self._samples = cohort.draft(), cohort.samples
        self._heard, self._now = dict[int, LastHeard](), LastHeard(math.nan, math.nan)
        self._oldest, self._recent = cohort.oldest, cohort.recent
        self._together: list[int] = []
        """Ranks that reported at the time of the last event, besides those in the state's `recent`."""
        self._working = cohort.totals.working
        """Ranks that have work; kept up to date for shared grants."""
        free = any(ledger.free for ledger in cohort.ledgers)
        self._exhausted = not free and cohort.begun == cohort.world.epochs
        """Whether no samples are left to grant to any rank."""
        self._settled = free and not cohort.takers
        """Whether samples are left, but no rank can be granted more unless its allowance grows."""
        if cohort.round is not None:
            self._waiting, self._owing = cohort.round.waiting, len(cohort.round.waiting)
        self._answered: set[int] = set()
        self._contributions: list[RankState] = []
        self._answers: list[Averaged] = []

    def enter(self, event: Event) -> bool:
        """Enter an event. Return False, with nothing changed, if it may need a decision or does not fit."""
        if isinstance(event, Progress):
            return self._train(event)
        return isinstance(event, Averaged) and not self._shares and self._answer(event)

    def close(self) -> CoordinatorState:
        """Return the state after the events."""
        current = self._cohort.round
        if current is not None and self._answers:
            current = replace(
                current,
                waiting=current.waiting.without(RankSet(self._answered)),
                contributions=current.contributions.add(*self._contributions),
                answers=current.answers.add(*self._answers),
            )
        together = self._recent.ranks.union(RankSet(self._together))
        self._recent = replace(self._recent, rank=self._together[-1], ranks=together)
        times = {
            "moved": self._now.seen,
            "last_heard": self._cohort.last_heard.update(self._heard),
            "oldest": self._oldest,
            "recent": self._recent,
        }
        # If known, no rank can be granted more; else the next dispatch finds out.
        known = {"takers": self._cohort.takers} if self._settled else {}
        return self._cohort.after(self._ranks, round=current, samples=self._samples, **times, **known)

    def _train(self, event: Progress) -> bool:
        rank, at = event.rank, event.at
        old = self._ranks[rank]
        if not old.alive or event.loss_sum is None or event.after not in (None, old.after) or not old.queue:
            return False
        first = old.queue[0]
        if not 0 < event.steps <= first.steps or first.epoch != event.epoch:
            return False
        ends = self._shares and event.steps == old.queued
        if ends and self._working < 2:
            return False  # it completes the shared grant, which `settle` must enter
        new, samples = old.train(event.steps, self._shares, event.busy_s, event.loss_sum, event.lr)
        if samples != event.samples:
            return False
        if not self._shares and not self._grants_nothing(new, rank in self._waiting and rank not in self._answered):
            return False
        self._working -= ends
        self._samples += samples
        self._put(rank, at, new)
        return True

    def _answer(self, event: Averaged) -> bool:
        rank, at, index = event.rank, event.at, self._cohort.current.index
        old = self._ranks[rank]
        if not old.alive or event.steps != old.steps or event.divergence is None:
            return False
        if event.round != index or rank in self._answered or rank not in self._waiting:
            return False
        if len(self._answered) + 1 == self._owing:
            return False  # the last answer closes the round
        new = old.contribute(after=index)
        if not self._grants_nothing(new, False):
            return False
        self._answered.add(rank)
        self._contributions.append(old)
        self._answers.append(event)
        self._put(rank, at, new)
        return True

    def _grants_nothing(self, state: RankState, ordered: bool) -> bool:
        """Return whether the rank cannot be granted more, because of its window or for lack of samples. `ordered`: as in
        `RankState.room`."""
        if self._exhausted:
            return True
        return self._settled and state.room(self._cohort.reach[state.rank], ordered) <= 0

    def _put(self, rank: int, at: float, new: RankState) -> None:
        if self._now.seen != at:
            self._now, self._oldest, self._together = LastHeard(at, at), min(self._oldest, at), []
            if self._recent.at != at:
                self._recent = Recent(at)
        self._ranks.put(rank, new)
        self._together.append(rank)
        self._heard[rank] = self._now
