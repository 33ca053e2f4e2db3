"""Whether windows follow the rule of a policy that sizes them by the learning rate (arXiv:2310.14423). Pure. Recomputes
the rule; must not import the policy."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import ceil, floor
from statistics import median

from pydantic import JsonValue

from bench.results.schema import Elche, Metrics, PlanRow, WindowRow
from bench.validate.records.run_records import UNBLOCKED, Records
from ddp.core.messages.commands import Average, Plan, Train
from ddp.core.messages.events import Progress
from ddp.core.window_sizes.controller import MAX_RATIO

FEW = 0.5
"""Fraction of rounds in which orders may be too short, as before speeds are known."""
BEGIN, ROUNDS, STEPS = 4, 8, 4
"""First round at which speeds are known; least number of rounds after it; least steps of a rank in each."""
MEMORY, GROWTH, UNFIT = (5, 9), 1.1, 2.0
"""Fewest and most averages whose median cost counts; the growth beyond the need; steps that ranks wait for each other as
counts are whole, at most."""
SCARCE = 2
"""Factor by which an anchor must be below what is needed, and below its bounds, to be too small."""
UNEQUAL, MOSTLY, PART = 1.8, 0.75, 0.6
"""Ratio of two ranks' seconds per step, and fraction of rounds that must show it, for speeds to be unequal; and
fraction of that ratio by which steps must differ."""


def off_rule(m: Metrics, known: Records, settings: Mapping[str, JsonValue]) -> str:
    """Name the order that is longer than the rule allows, or say that most are shorter; empty: none. Resumed runs are
    not judged, as their learning rate stepped back."""
    base, alpha = settings.get("base"), settings.get("alpha")
    if (
        m.elche is None
        or m.resumed
        or m.begun_without
        or not isinstance(base, int)
        or not isinstance(alpha, int | float)
    ):
        return ""
    most = longest_window(m, known)
    short, last, rounds = 0, "", 0
    for number, lr, due, order in _orders(known, m.elche, base, alpha, most):
        line = f"round {number}: the ordered anchor is {order.anchor}, the rule gives {due} at learning rate {lr:.4g}"
        if order.anchor > due:
            return line
        rounds += 1
        if order.anchor < due and not is_cut(order, most):
            short, last = short + 1, line
    return f"{last}; {short} of {rounds} orders are too short" if short > FEW * rounds else ""


def apart_from_settings(m: Metrics, known: Records, settings: Mapping[str, JsonValue]) -> str:
    """Name the order with a rank too far ahead, other ratios than configured, or too small an anchor; empty: none."""
    lead, parts = settings.get("max_batch_diff"), settings.get("partition_ratios")
    least = settings.get("min_anchor") or settings.get("anchor")
    if m.elche is None or m.begun_without:
        return ""
    nudged, most = m.resumed or any(row.verdict == "nudge" for row in m.elche.guard), longest_window(m, known)
    for plan in m.elche.plans:
        line = f"order at {plan.seconds:.2f} s: {plan.counts} steps"
        if isinstance(lead, int):
            if min(plan.counts) and max(plan.counts) - min(plan.counts) > lead:
                return f"{line}, but max_batch_diff allows a lead of {lead}"
        elif isinstance(parts, list) and (shares := [part for part in parts if isinstance(part, int | float)]):
            due = [sum(plan.counts) * share / sum(shares) for share in shares]
            if any(abs(count - part) > len(parts) for count, part in zip(plan.counts, due, strict=False)):
                return f"{line}, but partition_ratios is set to {parts}"
        elif isinstance(least, int) and plan.anchor < least and not nudged and not is_cut(plan, most):
            return f"{line}, an anchor of {plan.anchor}, but at least {least} is set (min_anchor, anchor)"
    return ""


def apart_from_plan(m: Metrics, known: Records, settings: Mapping[str, JsonValue]) -> str:
    """Name the order with another dispatch or a longer overshoot than configured, or a first one that does not follow
    the hint of speeds; empty: none."""
    most, dispatch = settings.get("max_overshoot"), settings.get("dispatch")
    dispatch = "fixed" if settings.get("partition_ratios") else dispatch
    for plan in known.plans:
        if isinstance(most, int) and max(plan.ahead, default=0) > most:
            return f"an order lets ranks run {max(plan.ahead)} steps ahead, but max_overshoot is set to {most}"
        if isinstance(dispatch, str) and plan.dispatch != dispatch:
            return f"an order dispatches samples as {plan.dispatch}, but dispatch is set to {dispatch}"
    hint, bound = settings.get("speed_hint"), settings.get("max_batch_diff") is not None or dispatch == "fixed"
    speeds = [speed for speed in hint if isinstance(speed, int | float)] if isinstance(hint, list) else []
    if not speeds or bound or m.resumed or m.begun_without or not known.plans:
        return ""
    counts, speeds = known.plans[0].counts, [max(speed, max(speeds) / MAX_RATIO) for speed in speeds]
    due = [sum(counts) * speed / sum(speeds) for speed in speeds]
    if any(abs(count - part) > len(speeds) for count, part in zip(counts, due, strict=False)):
        return f"first order: {list(counts)} steps, but speed_hint is set to {hint}"
    return ""


def above_need(m: Metrics, known: Records, settings: Mapping[str, JsonValue]) -> str:
    """Name the anchor that no measured cost of an average explains by `overhead_target`; empty: none."""
    target, least = settings.get("overhead_target"), settings.get("min_anchor") or settings.get("anchor")
    if not isinstance(target, float) or not isinstance(least, int) or m.resumed or m.begun_without:
        return ""
    steps = [busy / n for e in known.closed for busy, n in zip(e.busy_s, e.steps, strict=True) if n and busy > 0]
    if not steps:
        return ""
    quick, slow = min(steps), max(steps)
    costs = [event.sync_s + min(max(event.wait_s), slow) for event in known.closed]
    typical = [
        median(costs[end - count : end])
        for end in range(1, len(costs) + 1)
        for count in range(min(end, MEMORY[0]), min(end, MEMORY[1]) + 1)
    ]
    # In warm-up windows also grow by the part of a step that ranks wait for each other.
    most = max(least, ceil(GROWTH * max(max(typical), UNFIT * slow) / (target * quick)))
    anchor = max(plan.anchor for plan in known.plans) if known.plans else 0
    line = f"an anchor of {anchor} was ordered, but averages call for {most} at most (overhead_target={target:g})"
    return line if anchor > most else ""


def below_need(m: Metrics, known: Records, settings: Mapping[str, JsonValue]) -> str:
    """Name the anchor that stands still although averages cost a multiple of `overhead_target`; empty: none. Only where
    nothing else bounds it: no verdict of a guard, no limit on counts, and windows far below `max_anchor` and the epoch."""
    target, most = settings.get("overhead_target"), settings.get("max_anchor")
    bound = settings.get("max_batch_diff") is not None or settings.get("partition_ratios") or "base" in settings
    planned = m.engine == "elche" and m.backend != UNBLOCKED and not (m.resumed or m.begun_without or bound)
    if not isinstance(target, float) or not isinstance(most, int) or m.elche is None or m.elche.guard or not planned:
        return ""
    slow = max((busy / n for e in known.closed for busy, n in zip(e.busy_s, e.steps, strict=True) if n), default=0.0)
    costs = {event.round: event.sync_s for event in known.closed}
    recent, longest, still, before = deque[float](maxlen=MEMORY[1]), longest_window(m, known), 0, 0
    for row, order in _in_force(m.elche):
        recent.append(costs.get(row.round, 0.0))
        least = [median(list(recent)[-count:]) for count in range(MEMORY[0], len(recent) + 1)]
        need = min(least) / (target * slow) if len(recent) == MEMORY[1] and slow > 0 else 0.0
        free = SCARCE * order.anchor <= most and SCARCE * sum(order.counts) <= longest
        still = still + 1 if free and order.anchor == before and need > SCARCE * before else 0
        before = order.anchor
        if still == ROUNDS:
            call = f"averages call for {floor(need)} at least (overhead_target={target:g})"
            return f"round {row.round}: an anchor of {before} was ordered {ROUNDS} times, but {call}"
    return ""


def beyond_lead(m: Metrics, known: Records, settings: Mapping[str, JsonValue]) -> str:
    """Name the rank that was granted more than it may be ahead of the slowest one with work, both since they last copied
    their replicas; empty: none. Only where ranks do not block, and share a clock."""
    lead, one_host = settings.get("max_batch_diff"), len({event.host for event in known.ready}) == 1
    planned = m.engine == "elche" and not m.resumed and not m.begun_without
    if m.backend != UNBLOCKED or not isinstance(lead, int) or not (planned and one_host):
        return ""
    reports = deque(sorted([*known.progress, *known.snapshots], key=lambda event: event.at))
    granted, done, copied, copying = Counter[int](), Counter[int](), Counter[int](), set[int]()
    for at, order in known.work:
        while reports and reports[0].at <= at:
            event = reports.popleft()
            if isinstance(event, Progress):
                done[event.rank] += event.steps
            else:
                copied[event.rank] = done[event.rank]
                copying.discard(event.rank)
        if isinstance(order, Average):
            copying.add(order.rank)
        elif isinstance(order, Train):
            others = [done[r] - (done if r in copying else copied)[r] for r in granted if granted[r] > done[r]]
            granted[order.rank] += order.chunk.steps
            mine = granted[order.rank] - (done if order.rank in copying else copied)[order.rank]
            if others and mine - min(others) > max(lead, 1):
                more = f"granted up to {mine - min(others)} steps more than the slowest rank had done"
                return f"rank {order.rank}, epoch {order.chunk.epoch}: {more}, but max_batch_diff allows {lead}"
    return ""


def apart_from_speeds(m: Metrics, known: Records, settings: Mapping[str, JsonValue]) -> str:
    """Name the rank that trains as many steps as a much faster one, if steps should follow speeds; empty: none."""
    set_otherwise = settings.get("max_batch_diff") is not None or settings.get("partition_ratios")
    # Policies that size windows by the learning rate do not use speeds.
    plain = "speed_hint" in settings and "base" not in settings and settings.get("dispatch") == "progressive"
    if not plain or set_otherwise or m.resumed or m.begun_without or m.scripted_faults or m.engine != "elche":
        return ""
    rounds = [event for event in known.closed if event.round >= BEGIN and min(event.steps) >= STEPS]
    if len(rounds) < ROUNDS:
        return ""
    costs = [[busy / count for busy, count in zip(event.busy_s, event.steps, strict=True)] for event in rounds]
    typical = [median(row) for row in zip(*costs, strict=True)]
    slow, fast = typical.index(max(typical)), typical.index(min(typical))
    times = [row[slow] / row[fast] if row[fast] > 0 else 1.0 for row in costs]
    more = median(event.steps[fast] / event.steps[slow] for event in rounds)
    unequal = sum(each >= UNEQUAL for each in times) >= MOSTLY * len(rounds)
    if not unequal or more >= 1 + (min(median(times), MAX_RATIO) - 1) * PART:
        return ""
    return (
        f"rank {slow} takes {median(times):.3g} times as long for a step as rank {fast}, which trains {more:.3g} times as "
        f"many steps (medians of {len(rounds)} windows)"
    )


def longest_window(m: Metrics, known: Records) -> int:
    """Return the steps of an epoch, all ranks together."""
    return ceil(known.ready[0].samples / m.batch_size) if known.ready else 0


def is_cut(order: Plan | PlanRow, most: int) -> bool:
    """Return whether the window is a whole epoch, so that a longer order would have no effect."""
    return sum(order.counts) > most - len(order.counts)


def _orders(
    known: Records, elche: Elche, base: int, alpha: float, most: int
) -> Iterator[tuple[int, float, int, PlanRow]]:
    """Yield (round, its rate, anchor due after it, order in force) of each round but the last."""
    before, rates = 0.0, {event.round: event.lr for event in known.closed}
    for row, order in _in_force(elche):
        rate = rates.get(row.round, 0.0)
        rises = not before or before < rate or not rate
        due = base if rises else max(base, min(floor((alpha / rate) ** 2), most))
        before = rate
        yield row.round, rate, due, order


def _in_force(elche: Elche) -> Iterator[tuple[WindowRow, PlanRow]]:
    """Iterate over (round, order in force after it) of all rounds but the last."""
    plans, place = elche.plans, 0
    for row, following in pairwise(elche.windows) if plans else ():
        while place + 1 < len(plans) and plans[place + 1].seconds < following.seconds:
            place += 1
        yield row, plans[place]
