"""Granting: turns the steps that ranks want of an epoch into grants, each with its position in the schedule.

`ddp.core.grants.dispatch` decides the numbers of steps. The grants of one moment are entered in one draft of the ranks."""

from __future__ import annotations

from ddp.core.grants.allowance import givers
from ddp.core.messages.commands import Plan, Train
from ddp.core.samples.ledger import Ledger
from ddp.core.samples.spans import Chunk
from ddp.core.state.coordinator_state import CoordinatorState
from ddp.core.state.rank_state import RankState
from ddp.core.values.persistent import NOBODY


def grant(
    cohort: CoordinatorState, plan: Plan, ledger: Ledger, wants: dict[int, int]
) -> tuple[CoordinatorState, list[Train]]:
    """Grant samples of an epoch: to each rank the steps in `wants`, as far as samples are left."""
    if not wants:
        return cohort, []
    grants = GrantBatch(cohort, plan, ledger)
    for rank, steps in wants.items():
        grants.give(rank, steps)
    return grants.close(), grants.commands


class GrantBatch:
    """The changes of a state while ranks are granted samples of one epoch."""

    def __init__(self, cohort: CoordinatorState, plan: Plan, ledger: Ledger) -> None:
        self._cohort, self._ledger, self._parts = cohort, ledger, plan.weights or plan.counts
        self._owners, self._draft, self._fullest = givers(cohort, plan), cohort.draft(), cohort.fullest
        self._met, self._ordered = _met(cohort), NOBODY if cohort.round is None else cohort.round.gathering
        self._granted = sum(cohort.granted.values())
        """Steps granted to all ranks and not done."""
        self.commands: list[Train] = []

    def give(self, rank: int, steps: int) -> None:
        """Grant `steps` to a rank, in one or several grants, as far as samples are left for it."""
        cohort = self._cohort
        while steps > 0 and self._ledger.within_reach(rank, self._owners):
            # End a grant at the end of the rank's share of the window, so that it reports then, even if it has more to
            # do.
            share = self._share_left(rank) or steps
            if cohort.reserve:  # with a reserve, end it at the milestone
                unreported = share - cohort.window[rank] + cohort.milestones[rank]
                share = unreported if unreported > 0 else share
            steps -= self._give(rank, min(steps, share))

    def close(self) -> CoordinatorState:
        """Return the state with the grants."""
        changes = self._cohort.ledger_changes(self._ledger) if self.commands else {}
        return self._cohort.after(self._draft, fullest=self._fullest, **changes)

    def _share_left(self, rank: int) -> int:
        """Return the steps of the window that are not granted to `rank` yet."""
        return max(self._draft[rank].room(self._cohort.window[rank], rank in self._ordered), 0)

    def _give(self, rank: int, most: int) -> int:
        """Make one grant; return its steps."""
        cohort, world, state = self._cohort, self._cohort.world, self._draft[rank]
        self._ledger, (start, stop) = self._ledger.take(rank, most, world.batch, self._owners)
        chunk = Chunk(self._ledger.epoch, start, stop, world.batch)
        mine = stop - start
        steps = -(-mine // world.batch)
        # (steps of all ranks) / (steps of this rank): so no rank counts more samples as seen than all can have trained.
        pace = cohort.reach_of_all / cohort.reach[rank]
        # Queued steps were granted under another window, in which this rank's share may have been much larger.
        bound = (cohort.reach_of_all + self._granted) * world.batch
        whole = world.epochs * world.samples
        seen = min(cohort.samples + self._met + min(round(pace * _samples(state, before=False)), bound), whole - mine)
        pace = min(pace, (whole - seen) / mine)
        reason = f"{steps} steps, of {cohort.window[rank]} in the window"
        self.commands.append(Train(rank, chunk, seen, pace, reason))
        state = state.grant(chunk, steps, seen, pace)
        self._draft.put(rank, state)
        self._fullest = max(self._fullest, state.queued / self._parts[rank])
        self._granted += steps
        return steps


def _met(cohort: CoordinatorState) -> int:
    """Return the samples that ranks will train before the order to average: all of them are done before what is granted now
    begins. Exact, whichever windows they belong to."""
    return sum([_samples(state, before=True) for state in cohort.ranks if state.before]) if cohort.totals.ordered else 0


def _samples(state: RankState, before: bool) -> int:
    """Return the samples granted and not reported: of the steps before the order to average, or after it."""
    if state.before in (0, state.queued):  # the usual cases: no step is before the order, or all are
        return sum([chunk.left for chunk in state.queue]) if before == bool(state.before) else 0
    samples, left = [0, 0], state.before
    for chunk in state.queue:
        steps = chunk.steps
        first = min(left, steps)
        mine = chunk.samples(first)
        samples[0] += chunk.samples(steps) - mine
        samples[1] += mine
        left -= first
    return samples[before]
