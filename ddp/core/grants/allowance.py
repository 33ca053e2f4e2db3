"""Allowance: how many more steps a rank may be granted now, limited by the window, its lead and the slowest rank.

Pure queries of the coordinator's state. `dispatch` grants steps; `rounds` asks which ranks have nothing left to do."""

from __future__ import annotations

from typing import TypeVar

from ddp.core.messages.commands import Plan
from ddp.core.state.coordinator_state import CoordinatorState
from ddp.core.state.extremes import Slowest
from ddp.core.state.rank_state import RankState
from ddp.core.state.round_state import Phase
from ddp.core.values.frozen import replace
from ddp.core.values.persistent import NOBODY, RankSet

T = TypeVar("T")

MOST = 1 << 60
"""No limit."""


def allowance(cohort: CoordinatorState, plan: Plan, rank: int) -> int:
    """Return how many more steps may be granted to `rank`."""
    room = _room(cohort, cohort.ranks[rank], *_by_round(cohort, plan))
    if room <= 0 or not leads_bounded(cohort, plan):
        return room
    return min(room, _left(cohort, plan, rank, _slowest(cohort, plan)))


def allowances(cohort: CoordinatorState, plan: Plan) -> tuple[CoordinatorState, dict[int, int]]:
    """Return how many more steps may be granted to each rank that can take some, in ascending order; and the state in which
    `takers` is reduced to these ranks."""
    bounds, takers = leads_bounded(cohort, plan), cohort.takers
    slowest = _slowest(cohort, plan) if bounds else cohort.slowest
    if bounds and (slowest.steps is None or slowest.steps != cohort.slowest.steps):
        takers, slowest = takers.union(slowest.barred), replace(slowest, barred=NOBODY)
    rooms: dict[int, int] = {}
    barred, reach, (ordered, kept) = [], cohort.reach, _by_round(cohort, plan)
    for state in cohort.ranks.pick(takers):
        rank = state.rank
        if not state.alive or (kept is not NOBODY and rank in kept):
            continue
        room = state.room(reach[rank], ordered is not NOBODY and rank in ordered)
        if room > 0 and bounds and (left := _left(cohort, plan, rank, slowest)) < room:
            room = left
            if room <= 0:
                barred.append(rank)
        if room > 0:
            rooms[rank] = room
    if len(rooms) < len(takers) or bounds:
        slowest = replace(slowest, barred=slowest.barred.union(RankSet(barred))) if barred else slowest
        cohort = replace(cohort, takers=RankSet(rooms), slowest=slowest)
    return cohort, rooms


def leads_bounded(cohort: CoordinatorState, plan: Plan) -> bool:
    """Return whether a rank's lead over the slowest is limited at all times. (Where ranks block, they have no lead.)"""
    return plan.max_lead is not None and not cohort.world.blocking


def _left(cohort: CoordinatorState, plan: Plan, rank: int, slowest: Slowest) -> int:
    """Return the steps that `rank` may be granted before the slowest rank makes progress."""
    if slowest.steps is None:
        return MOST
    # Ranks without work are ignored. The slowest of the others may always do another step, so somebody makes progress.
    foremost = slowest.steps + max(plan.max_lead or 0, 1)
    return foremost - _done(cohort, rank) - cohort.ranks[rank].queued


def _slowest(cohort: CoordinatorState, plan: Plan) -> Slowest:
    """Return the slowest of the ranks with work, updated by the ranks that changed; searched among all if none of them is
    left."""
    known, steps, ranks = cohort.slowest, cohort.slowest.steps, cohort.slowest.ranks
    for rank in known.touched if steps is not None else ():
        done = _done(cohort, rank) if cohort.ranks[rank].alive and _works(cohort, plan, rank) else None
        if done is None or steps is None or done > steps:
            ranks = ranks.remove(rank)
        elif done == steps:
            ranks = ranks.add(rank)
        else:
            steps, ranks = done, RankSet((rank,))
    if not ranks:
        working = {rank: _done(cohort, rank) for rank in cohort.live if _works(cohort, plan, rank)}
        steps = min(working.values(), default=None)
        ranks = RankSet(rank for rank, done in working.items() if done == steps)
    return replace(known, steps=steps, ranks=ranks, touched=NOBODY)


def starved(cohort: CoordinatorState, plan: Plan, rank: int) -> bool:
    """Return whether the rank is idle for lack of samples. Valid after a dispatch."""
    return not cohort.ranks[rank].queue and allowance(cohort, plan, rank) > 0


def givers(cohort: CoordinatorState, plan: Plan) -> tuple[int, ...]:
    """Return the ranks whose own samples other ranks may take over."""
    if plan.dispatch == "progressive":
        return ()
    return tuple(r for r, state in enumerate(cohort.ranks) if plan.dispatch == "partition" or not state.alive)


def of_living(cohort: CoordinatorState, values: tuple[T, ...], lost: T) -> tuple[T, ...]:
    """Return one value for each rank: `lost` for lost ones."""
    if len(cohort.live) == len(values):
        return values
    return tuple(value if state.alive else lost for value, state in zip(values, cohort.ranks, strict=True))


def weights_of(cohort: CoordinatorState, plan: Plan) -> tuple[float, ...]:
    """Return the plan's weight of each rank, 0 for lost ones."""
    return of_living(cohort, plan.weights or tuple(map(float, plan.counts)), 0.0)


def _by_round(cohort: CoordinatorState, plan: Plan) -> tuple[RankSet, RankSet]:
    """Return the ranks whose order to average comes before what is granted now, so that their window ends with it; and the
    ranks that are granted nothing before they have taken in the average."""
    current = cohort.round
    if current is None:
        return NOBODY, NOBODY
    if cohort.world.blocking:
        return current.members.both(current.waiting), NOBODY
    return NOBODY, NOBODY if plan.overlap or current.phase is Phase.APPLY else current.members


def _room(cohort: CoordinatorState, state: RankState, ordered: RankSet, kept: RankSet) -> int:
    """Return the steps that the window and the plan's lead leave to a rank, regardless of other ranks. `ordered`, `kept`:
    as from `_by_round`."""
    if kept is not NOBODY and state.rank in kept:
        return 0
    return state.room(cohort.reach[state.rank], ordered is not NOBODY and state.rank in ordered)


def _works(cohort: CoordinatorState, plan: Plan, rank: int) -> bool:
    """Return whether the rank has something to train or to copy, or could be granted samples of the epochs in progress."""
    if cohort.ranks[rank].queue or _lays_down(cohort, rank):
        return True
    if _room(cohort, cohort.ranks[rank], *_by_round(cohort, plan)) <= 0:
        return False
    return any(ledger.within_reach(rank, givers(cohort, plan)) for ledger in cohort.ledgers)


def _done(cohort: CoordinatorState, rank: int) -> int:
    """Return the steps of `rank` in this window; 0 if it still has to copy its replica for the round of the last one."""
    return 0 if _lays_down(cohort, rank) else cohort.ranks[rank].steps


def _lays_down(cohort: CoordinatorState, rank: int) -> bool:
    current = cohort.round
    return current is not None and current.gathers(rank)
