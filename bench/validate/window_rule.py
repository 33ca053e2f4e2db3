"""How long windows are by the rule of a policy that sizes them by the learning rate (arXiv:2310.14423). Pure; must not
use the policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import ceil, floor

from pydantic import JsonValue

from bench.results.schema import Elche, Metrics, PlanRow
from bench.validate.run_records import Records

FEW = 0.5
"""Orders may be shorter than due now and then, as before speeds are known; in this part of all rounds they must not be."""


def off_rule(m: Metrics, known: Records, settings: Mapping[str, JsonValue]) -> str:
    """Say which order is longer than the rule has it, or that most are shorter; empty: none. Of a run that was gone on with
    nothing is said: its rates stepped back."""
    base, alpha = settings.get("base"), settings.get("alpha")
    if m.elche is None or m.resumed or m.late or not isinstance(base, int) or not isinstance(alpha, int | float):
        return ""
    most = ceil(known.ready[0].samples / m.batch_size) if known.ready else 0
    short, last, rounds = 0, "", 0
    for number, lr, due, order in _orders(known, m.elche, base, alpha, most):
        line = f"round {number}: an anchor of {order.anchor} is ordered, {due} is due at the rate {lr:.4g}"
        if order.anchor > due:
            return line
        rounds += 1
        whole_epoch = sum(order.counts) > most - len(order.counts)  # of which the slowest rank has its part
        if order.anchor < due and not whole_epoch:
            short, last = short + 1, line
    return f"{last}; {short} of {rounds} orders are too short" if short > FEW * rounds else ""


def _orders(
    known: Records, elche: Elche, base: int, alpha: float, most: int
) -> Iterator[tuple[int, float, int, PlanRow]]:
    """Yield of each round but the last: its number and rate, the anchor that is due behind it, and the order in force."""
    plans, place, before = elche.plans, 0, 0.0
    rates = {event.round: event.lr for event in known.closed}
    for row, following in pairwise(elche.windows):
        while place + 1 < len(plans) and plans[place + 1].seconds < following.seconds:
            place += 1
        rate = rates.get(row.round, 0.0)
        rises = 0 < before < rate or not rate
        due = base if rises else max(base, min(floor((alpha / rate) ** 2), most))
        before = rate
        if plans:
            yield row.round, rate, due, plans[place]
