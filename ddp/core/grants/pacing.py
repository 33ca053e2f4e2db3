"""Pacing: tells ranks how many samples all of them have seen, which sets the learning rate.

A grant contains the number of samples that will have been seen when it begins, as expected from all ranks' work. Where
ranks do not block it may begin much later or earlier than expected; then reports replace the expectation."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ddp.core.grants.allowance import allowances
from ddp.core.messages.commands import Pace, Plan, Train
from ddp.core.samples.spans import measure
from ddp.core.state.coordinator_state import CoordinatorState
from ddp.core.values.frozen import replace


def correct(
    cohort: CoordinatorState, plan: Plan, at: float, grants: tuple[Train, ...]
) -> tuple[CoordinatorState, tuple[Pace, ...]]:
    """Correct the ranks that have just reported, if their count of samples seen is off by more than a step of every rank.
    `grants`: granted just now."""
    recent = cohort.recent
    if plan.in_step or (cohort.world.blocking and not cohort.leads) or recent.at != at:
        return cohort, ()  # grants are exact here
    orders: list[Pace] = []
    most, samples = cohort.world.batch * len(cohort.live), cohort.samples
    low, high = recent.low, recent.high
    ranks: Iterable[int] = sorted({recent.rank, *(grant.rank for grant in grants)})
    if samples - low > most or high - samples > most:
        ranks, low, high = recent.ranks, math.inf, -math.inf
    for rank in ranks:
        state = cohort.ranks[rank]
        if not state.course or cohort.last_heard[rank].reported != at:
            continue
        if (off := abs(state.course[0][0] - samples)) > most:
            cohort, order = _correct(cohort, plan, rank, off)
            orders.append(order)
        start = cohort.ranks[rank].course[0][0]
        low, high = min(low, start), max(high, start)
    if low == recent.low and high == recent.high:
        return cohort, tuple(orders)
    return replace(cohort, recent=replace(recent, low=low, high=high)), tuple(orders)


def _correct(cohort: CoordinatorState, plan: Plan, rank: int, off: float) -> tuple[CoordinatorState, Pace]:
    state, pace = cohort.ranks[rank], _pace(cohort, plan, rank)
    seen, course = float(cohort.samples), []
    for chunk in state.queue:
        course.append((seen, pace))
        seen += pace * measure(chunk.spans(chunk.steps))
    cohort = cohort.with_rank(rank, replace(state, course=tuple(course)))
    return cohort, Pace(rank, cohort.samples, pace, f"off by {off:.0f} samples")


def _pace(cohort: CoordinatorState, plan: Plan, rank: int) -> float:
    """Return how many samples all ranks train for each sample of this rank, at their known speeds. At most what they may
    train until the rank has done its grants, and what is left: no rank reaches the end of the schedule early."""
    world, state = cohort.world, cohort.ranks[rank]
    expected = cohort.weight_of_all / max(float((plan.weights or plan.counts)[rank]), 1e-12)
    reach = sum(cohort.granted.values()) + sum(max(room, 0) for room in allowances(cohort, plan)[1].values())
    own = sum(measure(chunk.spans(chunk.steps)) for chunk in state.queue)
    left = (world.epochs * world.samples - cohort.samples) / own
    return max(min(expected, reach / state.queued, left), 1.0)
