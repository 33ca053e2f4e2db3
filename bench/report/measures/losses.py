"""The causes of the speed that a way of training lacks compared with the sum of its devices: shares of the ideal that
add up. Pure.

A sample costs the ranks more seconds than one device. The extra cost by category of the breakdown is the missing
speed; the part without a category is the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from bench.results.schema import Metrics

WORDS = {
    "wait": "waiting",
    "comm": "communicating",
    "data": "making batches",
    "compute": "slower computing than on one device",
    "checkpoint": "writing checkpoints",
    "absent": "absent ranks",
    "other": "between steps",
}
"""Category of the breakdown that costs training time -> its words. Evaluation stops the clock."""
IN_STEPS = "communicating inside the steps, slower than on one device"
"""Words of `compute` if collectives are part of it."""
INSIDE = "collectives inside the steps"
"""The same words if it is the largest share."""
REST = "the rest"
NAMED = 3
"""Causes that are named, the largest."""


def costs(runs: Sequence[Metrics]) -> dict[str, float]:
    """Return category -> rank-seconds that a sample costs, mean over runs; empty if not measured."""
    known = [cost for m in runs if (cost := _cost(m))]
    return {name: fmean(cost[name] for cost in known) for name in WORDS} if known else {}


def _cost(m: Metrics) -> dict[str, float]:
    samples = (m.throughput.samples_per_s or 0.0) * m.time_s.train
    walls = m.time_s.rank_wall
    if not m.timing or samples <= 0 or not m.breakdown or len(walls) != len(m.breakdown):
        return {}
    ranks = list(zip(m.breakdown, walls, strict=True))
    return {name: sum(getattr(rank, name) * wall for rank, wall in ranks) / samples for name in WORDS}


def lost(mine: Mapping[str, float], solo: Mapping[str, float]) -> dict[str, float]:
    """Return category -> extra cost of a sample compared with one device, as a share of its cost."""
    whole = sum(mine.values())
    return {name: (mine[name] - solo[name]) / whole for name in mine} if whole > 0 and solo else {}


def percents(missing: float, shares: Mapping[str, float], most: int = NAMED) -> list[tuple[str, int]]:
    """Return (category or "", whole percents), the largest `most` first, the rest ("") last: they add up to `missing`,
    rounded.

    Further losses, those below one percent, and what is gained are in the rest; it may be negative.
    """
    whole = round(100 * missing)
    named = [(name, round(100 * share)) for name, share in sorted(shares.items(), key=lambda item: -item[1])]
    named = [(name, share) for name, share in named if share >= 1][:most]
    rest = whole - sum(share for _, share in named)
    return [*named, ("", rest)] if rest else named


def in_words(missing: float, shares: Mapping[str, float], hidden: bool = False, most: int = NAMED) -> str:
    """Return `missing 26 %: 15 % waiting, 8 % communicating, 3 % the rest`; empty where nothing is missing.

    `hidden`: collectives lie inside the steps.
    """
    whole = round(100 * missing)
    if whole <= 0:
        return ""
    words = WORDS | ({"compute": IN_STEPS} if hidden else {})
    texts = [f"{share} % {words[name]}" if name else _rest(share) for name, share in percents(missing, shares, most)]
    return f"missing {whole} %: {', '.join(texts)}"


def cause(shares: Mapping[str, float], hidden: bool = False) -> str:
    """Return the words for the largest share."""
    name = max(shares, key=lambda each: shares[each])
    return INSIDE if hidden and name == "compute" else WORDS[name]


def _rest(share: int) -> str:
    return f"{share} % {REST}" if share > 0 else f"{-share} % gained elsewhere"
