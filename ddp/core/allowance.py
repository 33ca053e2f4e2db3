"""Allowance: how many steps more a rank may be granted now, by the window, by what it may run ahead, by the slowest rank.

Pure questions to the coordinator's state; `dispatch` grants, `rounds` asks who has nothing left to do.
"""

from __future__ import annotations

from ddp.core.commands import Plan
from ddp.core.coordinator_state import CoordinatorState
from ddp.core.persistent import RankSet
from ddp.core.phases import Phase
from ddp.core.values import replace


def allowance(cohort: CoordinatorState, plan: Plan, rank: int) -> int:
    """Return how many steps may still be granted to `rank`."""
    room = _room(cohort, plan, rank)
    foremost = _foremost(cohort, plan) if room > 0 else None
    return room if foremost is None else min(room, _bound(cohort, rank, foremost))


def allowances(cohort: CoordinatorState, plan: Plan) -> tuple[CoordinatorState, dict[int, int]]:
    """Return how many steps may still be granted to each rank that can take more, in ascending order, and the state that
    knows who can: no other rank may be granted any."""
    takers = cohort.takers
    rooms = {}
    for rank in takers:
        room = _room(cohort, plan, rank) if cohort.ranks[rank].alive else 0
        if room > 0:
            rooms[rank] = room
    if len(rooms) < len(takers):
        cohort = replace(cohort, takers=RankSet(rooms))
    foremost = _foremost(cohort, plan) if rooms else None
    if foremost is not None:
        rooms = {rank: min(room, _bound(cohort, rank, foremost)) for rank, room in rooms.items()}
    return cohort, rooms


def _bound(cohort: CoordinatorState, rank: int, foremost: int) -> int:
    return foremost - _done(cohort, rank) - cohort.ranks[rank].queued


def _foremost(cohort: CoordinatorState, plan: Plan) -> int | None:
    """Return the steps of the window up to which a rank may go; None: there is no bound."""
    if plan.max_lead is None or cohort.world.blocking:
        return None
    working = [_done(cohort, r) for r in cohort.live if _works(cohort, plan, r)]
    # Who has no work is not waited for. The slowest of the others may always do a step more, so somebody goes on.
    return min(working) + max(plan.max_lead, 1) if working else None


def starved(cohort: CoordinatorState, plan: Plan, rank: int) -> bool:
    """Return whether the rank stands still for lack of samples. Valid after a dispatch."""
    return not cohort.ranks[rank].queue and allowance(cohort, plan, rank) > 0


def givers(cohort: CoordinatorState, plan: Plan) -> tuple[int, ...]:
    """Return the ranks whose own samples others may take over."""
    if plan.dispatch == "progressive":
        return ()
    return tuple(r for r, state in enumerate(cohort.ranks) if plan.dispatch == "partition" or not state.alive)


def _room(cohort: CoordinatorState, plan: Plan, rank: int) -> int:
    """Return what the window and the steps ahead of it leave to `rank`, whatever the others do."""
    state, current = cohort.ranks[rank], cohort.round
    since, queued = state.steps, state.queued - state.before
    if current is not None and rank in current.members:
        if cohort.world.blocking:
            # The order to average is ahead of what is granted now: the window ends with it.
            since = 0 if rank in current.waiting else since
        elif not plan.overlap and current.phase is not Phase.APPLY:
            return 0
    return cohort.reach[rank] - since - queued


def _works(cohort: CoordinatorState, plan: Plan, rank: int) -> bool:
    """Return whether the rank has something to train or to copy, or could be granted some of the epochs in progress."""
    if cohort.ranks[rank].queue or _lays_down(cohort, rank):
        return True
    if _room(cohort, plan, rank) <= 0:
        return False
    return any(ledger.within_reach(rank, givers(cohort, plan)) for ledger in cohort.ledgers)


def _done(cohort: CoordinatorState, rank: int) -> int:
    """Return the steps of `rank` in the window; what it has still to copy for a round in flight is of the one before."""
    return 0 if _lays_down(cohort, rank) else cohort.ranks[rank].steps


def _lays_down(cohort: CoordinatorState, rank: int) -> bool:
    current = cohort.round
    return current is not None and current.gathers(rank)
