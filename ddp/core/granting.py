"""Granting: what ranks want of an epoch becomes grants, each with its place in the schedule. Knows who wants how much.

How much that is, is in `ddp.core.dispatch`. The grants of one moment are entered in one draft of the ranks.
"""

from __future__ import annotations

from ddp.core.allowance import givers
from ddp.core.commands import Plan, Train
from ddp.core.coordinator_state import CoordinatorState
from ddp.core.ledger import Ledger
from ddp.core.rank_state import RankState
from ddp.core.spans import Chunk
from ddp.core.values import replace

CHUNK = Chunk(0, 0, 0, 1)
GRANT = Train(0, CHUNK, 0, 1.0, "")
"""What grants are made from, at a third of the cost."""


def grant(
    cohort: CoordinatorState, plan: Plan, ledger: Ledger, wants: dict[int, int]
) -> tuple[CoordinatorState, list[Train]]:
    """Grant of an epoch what `wants` says, by rank, as far as it is there."""
    if not wants:
        return cohort, []
    grants = GrantBatch(cohort, plan, ledger)
    for rank, steps in wants.items():
        grants.give(rank, steps)
    return grants.close(), grants.commands


class GrantBatch:
    """What changes of a state while ranks are granted samples of one epoch."""

    def __init__(self, cohort: CoordinatorState, plan: Plan, ledger: Ledger) -> None:
        self._cohort, self._ledger, self._parts = cohort, ledger, plan.weights or plan.counts
        self._owners, self._draft, self._fullest = givers(cohort, plan), cohort.draft(), cohort.fullest
        self._met = _met(cohort)
        self._granted = sum(cohort.granted.values())
        """Steps granted to all and not done."""
        self.commands: list[Train] = []

    def give(self, rank: int, steps: int) -> None:
        """Grant a rank so many steps, in one grant or several, as far as it finds them."""
        cohort = self._cohort
        while steps > 0 and self._ledger.within_reach(rank, self._owners):
            # A grant ends with the rank's share of the window: it reports there, though it has more to do.
            share = self._share_left(rank) or steps
            if cohort.reserve:  # and where some of the window is held back, before that
                unreported = share - cohort.window[rank] + cohort.milestones[rank]
                share = unreported if unreported > 0 else share
            steps -= self._give(rank, min(steps, share))

    def close(self) -> CoordinatorState:
        """Return the state with what was granted."""
        cohort = self._cohort.with_ledger(self._ledger) if self.commands else self._cohort
        return cohort.after(self._draft, fullest=self._fullest)

    def _share_left(self, rank: int) -> int:
        """Return the steps of the window that `rank` has not been granted."""
        state, current = self._draft[rank], self._cohort.round
        ordered = current is not None and current.gathers(rank)
        return max(state.room(self._cohort.window[rank], ordered), 0)

    def _give(self, rank: int, most: int) -> int:
        """Make one grant; return its steps."""
        cohort, world, state = self._cohort, self._cohort.world, self._draft[rank]
        self._ledger, (start, stop) = self._ledger.take(rank, most, world.batch, self._owners)
        chunk = replace(CHUNK, epoch=self._ledger.epoch, start=start, stop=stop, batch=world.batch)
        steps, mine = chunk.steps, stop - start
        # What all may do in a window over what this rank may do: no rank takes the schedule beyond what all can reach.
        pace = cohort.reach_of_all / cohort.reach[rank]
        # What is queued was granted under another window, of which this rank's part may have been larger by far.
        bound = (cohort.reach_of_all + self._granted) * world.batch
        whole = world.epochs * world.samples
        seen = min(cohort.samples + self._met + min(round(pace * _samples(state, before=False)), bound), whole - mine)
        pace = min(pace, (whole - seen) / mine)
        reason = f"{steps} steps, of {cohort.window[rank]} in the window"
        self.commands.append(replace(GRANT, rank=rank, chunk=chunk, seen=seen, pace=pace, reason=reason))
        queue, course = (*state.queue, chunk), (*state.course, (float(seen), pace))
        queued = state.queued + steps
        self._draft.put(rank, replace(state, queue=queue, queued=queued, course=course))
        self._fullest = max(self._fullest, queued / self._parts[rank])
        self._granted += steps
        return steps


def _met(cohort: CoordinatorState) -> int:
    """Return the samples that any rank trains before the order to average: they will be done when what is granted now
    begins. Exact, whatever windows it is of."""
    return sum(_samples(cohort.ranks[r], before=True) for r in cohort.live) if cohort.totals.ordered else 0


def _samples(state: RankState, before: bool) -> int:
    """Return the samples granted and not reported, of the steps before the order to average or of those behind it."""
    if state.before in (0, state.queued):  # as mostly: none comes before the order, or all
        return sum([chunk.samples(chunk.steps) for chunk in state.queue]) if before == bool(state.before) else 0
    samples, left = [0, 0], state.before
    for chunk in state.queue:
        steps = chunk.steps
        first = min(left, steps)
        mine = chunk.samples(first)
        samples[0] += chunk.samples(steps) - mine
        samples[1] += mine
        left -= first
    return samples[before]
