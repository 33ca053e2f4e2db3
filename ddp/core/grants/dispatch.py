"""Dispatch: which rank gets which samples next. The same for every policy; a policy's `Plan` says how many steps.

Pure functions of the cohort and the plan. Knows no controller, and of the backend only `world.blocking` and
`world.in_step`."""

from __future__ import annotations

import math
import operator

from ddp.core.grants.allowance import allowances, givers, of_living, weights_of
from ddp.core.grants.ending import check_parts, end_together, without_done
from ddp.core.grants.granting import grant
from ddp.core.grants.shared_grants import share_epoch
from ddp.core.messages.commands import Plan, Train
from ddp.core.samples.ledger import Ledger
from ddp.core.state.coordinator_state import CoordinatorState
from ddp.core.values.frozen import replace
from ddp.core.window_sizes.allocation import fit, level, merge_lone, top_up

RESERVE = 4
"""In rebalanced windows, 1/RESERVE of every count is held in reserve at first."""
MILESTONE = 3 / 4
"""Fraction of a rank's first part of such a window after which it reports its progress."""


def dispatch(cohort: CoordinatorState, plan: Plan) -> tuple[CoordinatorState, tuple[Train, ...]]:
    """Grant every rank what the plan allows it and the epochs in progress still contain."""
    if plan.in_step:
        return share_epoch(cohort, plan)
    cohort, grants = _windows(cohort, plan)
    if grants or not _stuck(cohort):
        return cohort, grants
    return _windows(begin_window(cohort, plan), plan)


def _stuck(cohort: CoordinatorState) -> bool:
    """Return whether nothing is under way, so that no round will follow, though samples are left. In a window without
    steps for a rank that has joined since, these may be its own, which no other rank may take."""
    idle = cohort.round is None and not cohort.totals.working and not cohort.totals.trained
    return idle and any(ledger.free for ledger in cohort.ledgers)


def begin_window(cohort: CoordinatorState, plan: Plan) -> CoordinatorState:
    """Set the counts of the next window: the plan's counts, fitted so that the rest of the epoch is a number of whole
    windows.

    Steps granted ahead are part of the window. Otherwise a window would end a few steps before its epoch, and each end
    costs a round."""
    counts = of_living(cohort, plan.counts, 0)
    ledger = next((ledger for ledger in cohort.ledgers if ledger.free), None) or _open(cohort, plan)
    if plan.dispatch != "fixed":
        begun = sum([state.queued - state.before for state in cohort.ranks if state.alive])
        window = fit(counts, weights_of(cohort, plan), ledger.steps(cohort.world.batch) + begun, plan.max_lead)
    else:
        window = counts if plan.lookahead else _of_own(cohort, plan, ledger)
    reserve = tuple([n // RESERVE for n in window]) if plan.rebalance else ()
    given = tuple(map(operator.sub, window, reserve)) if reserve else window
    milestones = tuple([math.ceil(MILESTONE * n) for n in given]) if reserve else ()
    return cohort.with_window(given, sum(reserve), milestones).under(plan)


def _rebalance(cohort: CoordinatorState, plan: Plan) -> CoordinatorState:
    """Assign half of the window's reserve once every rank has passed its milestone, or one has nothing left to do. Assign
    all of it if half is less than what all ranks do during one step of the slowest.

    Milestones are late enough that jitter of a step or two does not dominate. In loop scheduling this is called factoring
    (Hummel, Schonberg, Flynn, 1992)."""
    if not cohort.reserve or cohort.round is not None:
        return cohort
    if cohort.totals.behind and not cohort.totals.idle:
        return cohort
    weights = weights_of(cohort, plan)
    in_a_step = sum(weights) / min((w for w in weights if w), default=1.0)
    kept = cohort.reserve // 2 if cohort.reserve // 2 >= in_a_step else 0
    more = top_up(*_outlook(cohort, weights), cohort.reserve - kept)
    return cohort.with_window(tuple(map(operator.add, cohort.window, more)), kept, cohort.window).under(plan)


def _outlook(cohort: CoordinatorState, weights: tuple[float, ...]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the steps that each rank will have done in this window with its present part, and its weight for more steps.

    All ranks are to end at the same time, even if one began the window late because of an evaluation. So the steps done are
    counted by the clock, from the earliest of the ranks' last reports on, at the rank's expected speed. That is half-way
    (geometrically) between its speed in this window and the known one, as part of a change is jitter. A rank that has not
    reported counts at its known speed, but not as past its milestone. If no rank has reported, weights are unchanged."""
    states, times = cohort.ranks, [heard.reported for heard in cohort.last_heard]
    of_live = [times[rank] for rank in cohort.live]
    first, latest = min(of_live), max(of_live)
    reports = [bool(state.busy_s and state.steps and w) for state, w in zip(states, weights, strict=True)]
    if not any(reports):
        return tuple(float(state.queued) for state in states), weights
    measured = [state.steps / state.busy_s if known else 0.0 for state, known in zip(states, reports, strict=True)]
    scale = sum(measured) / sum(w for w, known in zip(weights, reports, strict=True) if known)
    expected = tuple(
        math.sqrt(v * w * scale) if known else min(w * scale, milestone / max(latest - time, 1e-9))
        for v, w, known, milestone, time in zip(measured, weights, reports, cohort.milestones, times, strict=True)
    )
    return tuple(
        v * (time - first) + state.queued for v, state, time in zip(expected, states, times, strict=True)
    ), expected


def _open(cohort: CoordinatorState, plan: Plan) -> Ledger:
    """Return the ledger of the next epoch; if each rank has its own slice, slices are in proportion to the plan."""
    world = cohort.world
    if plan.dispatch == "progressive":
        return Ledger.shared(cohort.begun, world.samples)
    steps = level(weights_of(cohort, plan), of_living(cohort, (world.steps,) * world.size, 0), world.steps)
    return Ledger.sliced(cohort.begun, world.samples, world.batch, steps)


def _of_own(cohort: CoordinatorState, plan: Plan, ledger: Ledger) -> tuple[int, ...]:
    """Return a window in which no rank takes another's samples: the rest of each slice, at most the plan's counts.

    What lost ranks leave behind is divided in addition. Every rank with something left does some of it."""
    counts, batch = of_living(cohort, plan.counts, 0), cohort.world.batch
    own = of_living(cohort, tuple(-(-(stop - start) // batch) for start, stop in ledger.pools), 0)
    orphaned = ledger.steps(batch) - sum(own)
    more = level(weights_of(cohort, plan), of_living(cohort, (orphaned,) * len(own), 0), orphaned)
    rest = tuple(map(sum, zip(own, more, strict=True)))
    windows = max(-(-left // n) for left, n in zip(rest, counts, strict=True) if n)
    # a single step says little about a rank's speed, as it includes the start-up
    return tuple(
        min(max(-(-left // windows), 2), left, n) if windows else n for left, n in zip(rest, counts, strict=True)
    )


def _windows(cohort: CoordinatorState, plan: Plan) -> tuple[CoordinatorState, tuple[Train, ...]]:
    commands: list[Train] = []
    cohort = _rebalance(cohort, plan) if cohort.window else begin_window(cohort, plan)
    cohort = check_parts(cohort)
    rooms: dict[int, int] | None = None
    """Allowances in the present state; None: outdated, as something was granted since."""
    if any(ledger.free for ledger in cohort.ledgers):
        cohort, rooms = allowances(cohort, plan)
        if not rooms:
            return cohort, ()
    while True:
        for ledger in cohort.ledgers:
            if not ledger.free:
                continue
            if rooms is None:
                cohort, rooms = allowances(cohort, plan)
            cohort, wants = _wants(cohort, plan, ledger, rooms)
            cohort, grants = grant(cohort, plan, ledger, wants)
            if grants:
                commands, rooms = commands + grants, None
        begun = cohort.begun
        cohort = _begin_epoch(cohort, plan)
        rooms = None
        if cohort.begun == begun:
            # Computed for the following events, most of which then need no decision.
            cohort = allowances(cohort, plan)[0] if commands else cohort
            return without_done(cohort), tuple(commands)


def _wants(
    cohort: CoordinatorState, plan: Plan, ledger: Ledger, rooms: dict[int, int]
) -> tuple[CoordinatorState, dict[int, int]]:
    """Return the steps of an epoch to grant now, by rank; divided in proportion if there are not enough."""
    left, wants = ledger.steps(cohort.world.batch), rooms
    if len(ledger.pools) > 1:
        owners = givers(cohort, plan)
        wants = {rank: room for rank, room in rooms.items() if ledger.within_reach(rank, owners)}
    last = cohort.begun == cohort.world.epochs and plan.dispatch != "fixed"
    if last and cohort.leads and wants:
        cohort, wants = end_together(cohort, plan, wants, left)
    if sum(wants.values()) > left:
        steps = tuple(wants.values())
        weights = tuple(map(float, steps))
        steps = merge_lone(level(weights, steps, left), weights, steps, plan.max_lead)
        wants = dict(zip(wants, steps, strict=True))
    return cohort, wants


def _begin_epoch(cohort: CoordinatorState, plan: Plan) -> CoordinatorState:
    """Open the next epoch if a rank finds no samples in those in progress, and these are at most `plan.lookahead`."""
    closing = cohort.round.closes if cohort.round is not None else ()
    in_progress = [ledger for ledger in cohort.ledgers if not ledger.complete and ledger.epoch not in closing]
    if plan.lookahead and in_progress and not in_progress[0].free:
        in_progress.pop(0)  # a fast rank does not wait for the last steps of a slow one
    if len(in_progress) > plan.lookahead or cohort.begun == cohort.world.epochs:
        return cohort
    cohort, rooms = allowances(cohort, plan)
    if not any(room > 0 for room in rooms.values()):
        return cohort
    ledgers = (*cohort.ledgers, _open(cohort, plan))
    return replace(cohort, ledgers=ledgers, begun=cohort.begun + 1, slowest=cohort.slowest.unknown())
