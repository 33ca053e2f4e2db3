"""Pacing: where a rank is in the schedule, and telling it where all are.

A grant says how many samples will have been seen when it begins, by what all ranks were expected to do until then. Where
nobody blocks it may begin much later than expected, or sooner: what ranks report takes the place of what was expected.
"""

from __future__ import annotations

from ddp.core.allowance import allowance
from ddp.core.commands import Pace, Plan
from ddp.core.coordinator_state import CoordinatorState
from ddp.core.spans import measure
from ddp.core.values import replace


def correct(cohort: CoordinatorState, plan: Plan, at: float) -> tuple[CoordinatorState, tuple[Pace, ...]]:
    """Tell the rank that has reported now where all are, if it is off by more than a step of every rank."""
    if plan.in_step or (cohort.world.blocking and not cohort.leads):
        return cohort, ()  # what all have done by the next grant is known when it is made
    orders: list[Pace] = []
    for rank in cohort.recent[1] if cohort.recent[0] == at else ():
        state = cohort.ranks[rank]
        off = abs(state.course[0][0] - cohort.samples) if state.course else 0.0
        if state.reported != at or off <= cohort.world.batch * len(cohort.live):
            continue
        pace = _pace(cohort, plan, rank)
        seen, course = float(cohort.samples), []
        for chunk in state.queue:
            course.append((seen, pace))
            seen += pace * measure(chunk.spans(chunk.steps))
        cohort = cohort.with_rank(rank, replace(state, course=tuple(course)))
        orders.append(Pace(rank, cohort.samples, pace, f"off by {off:.0f} samples"))
    return cohort, tuple(orders)


def _pace(cohort: CoordinatorState, plan: Plan, rank: int) -> float:
    """Return what all train for each sample of a rank, at their known speeds; no more than they may until the rank has done
    what it was granted, nor than there is to train: nobody is at the end of the schedule before it."""
    world, state = cohort.world, cohort.ranks[rank]
    weights = plan.weights or tuple(map(float, plan.counts))
    expected = sum(weights[r] for r in cohort.live) / max(weights[rank], 1e-12)
    reach = sum(cohort.ranks[r].queued + max(allowance(cohort, plan, r), 0) for r in cohort.live)
    own = sum(measure(chunk.spans(chunk.steps)) for chunk in state.queue)
    left = (world.epochs * world.samples - cohort.samples) / own
    return max(min(expected, reach / state.queued, left), 1.0)
