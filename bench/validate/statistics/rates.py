"""How often a rare event, such as divergence, happens to the seeds of a cell and to its baseline's: exact tests and
bounds. Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from bench.base import special
from bench.validate.statistics.significance import Floats

GRID = 1001
"""Number of rates at which the chance of a table is computed."""
SURPRISE = 0.05
"""Level at which a single cell has more events than its baseline's rate explains."""


def upper(events: int, seeds: int) -> float:
    """Return the upper 95 % bound of a rate (C. Clopper, E. Pearson 1934): 63 % for 0 of 3, 14 % for 0 of 20."""
    if events >= seeds:
        return 1.0
    if not events:
        return float(1 - 0.05 ** (1 / seeds))
    return float(special.betaincinv(events + 1, seeds - events, 0.95))


@lru_cache(maxsize=256)
def excess(base_seeds: int, seeds: int) -> Floats:
    """Return the one-sided p-value of a cell's rate above its baseline's, [events of the baseline, events of the cell].

    It is the largest chance, over all common rates, of a table that Fisher's test finds as extreme (R. Boschloo 1970).
    """
    theirs, mine = np.arange(base_seeds + 1), np.arange(seeds + 1)
    total = theirs[:, None] + mine[None, :]
    fisher = _fisher(base_seeds + seeds, seeds)[total, mine[None, :]]
    rates = np.linspace(0.0, 1.0, GRID)
    chance = _binomial(base_seeds, rates)[:, None, :] * _binomial(seeds, rates)[None, :, :]
    order = np.argsort(fisher, axis=None, kind="stable")
    worst = np.cumsum(chance.reshape(-1, GRID)[order], axis=0).max(axis=-1)
    ranked = fisher.ravel()[order]
    last = np.searchsorted(ranked, ranked * (1 + 1e-9), side="right") - 1  # tables that are equally extreme count, too
    table = np.empty(ranked.size)
    table[order] = worst[last]
    return np.minimum(table.reshape(fisher.shape), 1.0)


def _fisher(all_seeds: int, seeds: int) -> Floats:
    """Return the chance that `seeds` of `all_seeds`, drawn at random, have at least so many events, [events of all,
    events of those drawn]. This is the hypergeometric distribution; `scipy.stats` takes half a second to import."""
    total, mine = np.arange(all_seeds + 1)[:, None], np.arange(seeds + 1)[None, :]
    possible = (mine <= total) & (seeds - mine <= all_seeds - total)
    ways = _log_comb(total, mine) + _log_comb(all_seeds - total, seeds - mine) - _log_comb(all_seeds, seeds)
    chance = np.where(possible, np.exp(np.where(possible, ways, 0.0)), 0.0)
    return np.asarray(np.cumsum(chance[:, ::-1], axis=1)[:, ::-1])


def _log_comb(count: Any, chosen: Any) -> Any:
    rest = np.maximum(count - chosen, 0)
    whole, mine, others = (special.gammaln(np.asarray(each) + 1.0) for each in (count, chosen, rest))
    return whole - mine - others


def _binomial(count: int, rates: Floats) -> Floats:
    events = np.arange(count + 1)[:, None]
    return np.asarray(special.comb(count, events) * rates**events * (1 - rates) ** (count - events))
