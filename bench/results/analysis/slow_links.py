"""Seconds of communication that slow links cost: links that became slow during the run, and links that are slower than
the others by its settings, by the cost model. A collective is as slow as its slowest link. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations
from math import inf
from statistics import fmean

import numpy as np

from bench.results.analysis.slices import EXPOSED, Flags, Slices
from bench.results.analysis.stretches import Stretches, intersection, seconds, union, without
from ddp.core.anomalies.slowness import LINK, SlowRank
from ddp.core.network.link_costs import collective_s
from ddp.core.network.links import MOST_BANDWIDTH, RING, LinkRule, Links, RankLink

OVER_SLOW_LINK = "communicating over the slow link of rank "
"""Prefix of the name of a cause; the number of the rank follows."""
BOUND_BY = "communicating, bounded by link "
"""Prefix of the name of a cause; the link follows as in `cluster.links`."""
DRAWS = 16
"""Draws of jitter and losses over which the cost of a collective is averaged."""
QUICK = 0.75
"""Fraction of the time of the quickest all-reduce below which a collective was none: a reduce-scatter takes half of one."""
FREE = RankLink(0.0, MOST_BANDWIDTH)
"""Link that costs nothing."""
Rows = Sequence[dict[str, float]]
"""Seconds by cause, of each rank."""


def divide(rows: Rows, slices: Slices, behind: Slices, slow: Sequence[SlowRank], links: Links | None) -> list[str]:
    """Divide the seconds of communicating by the slow links that they are due to. Return lines on links that are slower
    than others by the settings. `behind`: collectives of which `slices` have only the exposed parts."""
    _became_slow(rows, slices, slow)
    return _set_slow(rows, slices, behind, links) if links is not None else []


def _moved(row: dict[str, float], cause: str, spent: float) -> None:
    spent = min(spent, row["communicating"])
    if spent > 0:
        row["communicating"] -= spent
        row[cause] = row.get(cause, 0.0) + spent


def _became_slow(rows: Rows, slices: Slices, slow: Sequence[SlowRank]) -> None:
    """Count, of the collectives since a link became slow, what they took longer than before. The slowest link counts."""
    ranks = sorted((each for each in slow if each.cause == LINK and each.factor > 1), key=lambda each: -each.factor)
    for rank, row in enumerate(rows if ranks else ()):
        mine = slices.places(rank)
        mine = mine[_met(slices)[mine]]
        wire = union(slices.wire_start[mine], slices.stop[mine])
        for each in ranks:
            when: Stretches = np.array([each.since]), np.array([inf if each.healed is None else each.healed])
            longer = seconds(intersection(wire, when)) * (1 - 1 / each.factor)
            _moved(row, f"{OVER_SLOW_LINK}{each.rank}", longer)
            wire = without(wire, when)


def _met(slices: Slices) -> Flags:
    return np.isin(slices.kind, ("exchange", EXPOSED))


def _set_slow(rows: Rows, slices: Slices, behind: Slices, links: Links) -> list[str]:
    members = defaultdict[int, set[int]](set)
    for each in (slices, behind):
        for rank, number in zip(each.rank[_met(each)].tolist(), each.seq[_met(each)].tolist(), strict=True):
            members[number].add(rank)
    lines, places = dict[LinkRule, str](), np.flatnonzero(_met(slices))
    for place, number in zip(places.tolist(), slices.seq[places].tolist(), strict=True):
        cell = links, tuple(sorted(members[number])), int(slices.bytes[place])
        limit = bound(*cell)
        if limit is not None:
            rule, whole, lost = limit
            took = float(slices.stop[place] - slices.wire_start[place])
            if slices.kind[place] != EXPOSED and took < QUICK * min(_draws_s(*cell)):
                whole, lost = whole / 2, lost / 2
            _moved(rows[int(slices.rank[place])], f"{BOUND_BY}{rule}", min(lost, took))
            other = f"{1e3 * (whole - lost):.3g} ms if it were as fast as the others"
            lines.setdefault(rule, f"link {rule} bounds collectives: one takes {1e3 * whole:.3g} ms over it, {other}")
    return list(lines.values())


@lru_cache
def bound(links: Links, members: tuple[int, ...], size: int) -> tuple[LinkRule, float, float] | None:
    """Return (the link that costs a collective most, seconds of the collective, seconds by which it would be shorter with
    that link as the fastest other one); None if no link is slower than others."""
    pairs = (
        zip(members, members[1:] + members[:1], strict=True) if links.algorithm == RING else combinations(members, 2)
    )
    used = {links.between(a, b) for a, b in pairs if a != b}
    whole, best = _mean_s(links, members, size), None
    for place in used - {-1}:
        others = [FREE if other < 0 else links.rules[other].link for other in used - {place}]
        left = min((_mean_s(_with(links, place, link), members, size) for link in others), default=whole)
        if whole - left > (best[2] if best else 1e-3 * whole):
            best = links.rules[place], whole, whole - left
    return best


def _with(links: Links, place: int, link: RankLink) -> Links:
    rules = (*links.rules[:place], replace(links.rules[place], link=link), *links.rules[place + 1 :])
    return replace(links, rules=rules)


def _mean_s(links: Links, members: tuple[int, ...], size: int) -> float:
    return fmean(_draws_s(links, members, size))


@lru_cache
def _draws_s(links: Links, members: tuple[int, ...], size: int) -> tuple[float, ...]:
    """Return seconds of an all-reduce."""
    return tuple(collective_s(links, members, size, number) for number in range(DRAWS))
