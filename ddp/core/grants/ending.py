"""The end of training: grants are reduced so that all ranks end together.

Pure functions of the coordinator's state and the plan. `dispatch` calls them for the last epoch."""

from __future__ import annotations

from collections.abc import Sequence

from ddp.core.grants.allowance import weights_of
from ddp.core.messages.commands import Plan
from ddp.core.state.coordinator_state import CoordinatorState
from ddp.core.state.extremes import EndParts
from ddp.core.values.frozen import replace
from ddp.core.values.persistent import RankSet, Row
from ddp.core.window_sizes.allocation import top_up

SURELY = 1 - 1e-9
"""Safety factor that covers the rounding of sums."""
EACH = 64
"""A division of the rest among n ranks serves n // EACH decisions, and at least one. A division costs n, so a decision
costs no more with many ranks than with EACH."""


def end_together(
    cohort: CoordinatorState, plan: Plan, wants: dict[int, int], left: int
) -> tuple[CoordinatorState, dict[int, int]]:
    """Return the steps to grant of those that ranks want, with `left` steps left in all: each rank leaves the others their
    part of the rest.

    Steps already granted to a rank count as done. A rank that has its part already gets nothing."""
    if plan.max_lead is not None:  # ranks that must wait for the slowest leave it its part
        parts = dict(zip(wants, _divided(cohort, plan, tuple(wants), left), strict=True))
        return cohort, {rank: min(want, parts[rank]) for rank, want in wants.items()}
    if _plenty(cohort, plan, wants, left):
        return cohort, wants
    if cohort.parts is not None and cohort.parts.left != left:  # those of another epoch
        cohort = _without_parts(cohort, cohort.parts)
    if (known := cohort.parts) is None:
        of = Row(_divided(cohort, plan, range(len(cohort.ranks)), left))
        known = EndParts(of, left, len(cohort.live), len(cohort.live) // EACH)
    grants = {rank: min(want, part) for (rank, want), part in zip(wants.items(), known.of.pick(wants), strict=True)}
    return replace(cohort, parts=_use(known, grants)), grants


def check_parts(cohort: CoordinatorState) -> CoordinatorState:
    """Return the state without a division of the rest that is used up, or that is not of the free steps and the ranks of
    now."""
    known = cohort.parts
    if known is None:
        return cohort
    left = sum([ledger.steps(cohort.world.batch) for ledger in cohort.ledgers if ledger.free])
    if known.uses > 0 and known.left == left and known.live == len(cohort.live):
        return cohort
    return _without_parts(cohort, known)


def without_done(cohort: CoordinatorState) -> CoordinatorState:
    """Return the state in which ranks that have their whole part of the rest are no takers."""
    if cohort.parts is None or not cohort.parts.done:
        return cohort
    return replace(cohort, takers=cohort.takers.without(cohort.parts.done))


def _without_parts(cohort: CoordinatorState, known: EndParts) -> CoordinatorState:
    """Return the state in which all ranks may ask for more again."""
    return replace(cohort, parts=None, takers=cohort.takers.union(known.done))


def _use(known: EndParts, grants: dict[int, int]) -> EndParts | None:
    """Return what is left of a division of the rest after `grants`; None: it served one decision."""
    if not known.uses:
        return None
    left = {rank: part - steps for (rank, steps), part in zip(grants.items(), known.of.pick(grants), strict=True)}
    done = known.done.union(RankSet([rank for rank, part in left.items() if not part]))
    return EndParts(known.of.update(left), known.left - sum(grants.values()), known.live, known.uses - 1, done)


def _divided(cohort: CoordinatorState, plan: Plan, ranks: Sequence[int], left: int) -> tuple[int, ...]:
    """Return the parts of `ranks`, if all `left` steps are divided among them."""
    weights = weights_of(cohort, plan)
    queued = tuple([float(cohort.ranks[rank].queued) for rank in ranks])
    return top_up(queued, tuple([weights[rank] for rank in ranks]), left)


def _plenty(cohort: CoordinatorState, plan: Plan, wants: dict[int, int], left: int) -> bool:
    """Return whether enough is left that all requests are within the ranks' parts."""
    end = (left + sum(cohort.granted.values())) / cohort.weight_of_all * SURELY
    parts = plan.weights or plan.counts
    return cohort.fullest <= end and all(
        cohort.ranks[rank].queued + want + 1 <= end * parts[rank] for rank, want in wants.items()
    )
