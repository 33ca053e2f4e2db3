"""The steps of a rank, told from its slices. Pure."""

from __future__ import annotations

import numpy as np

from bench.results.analysis.breakdown import categories, within
from bench.results.analysis.stream import Floats, Places, Slices

Steps = dict[int, tuple[Floats, Floats]]
"""Rank -> begins and ends of its steps, seconds on the clock of the records, ascending."""


def steps(slices: Slices, micro: bool = False) -> Steps:
    """Return the steps of each rank. One begins with a batch (`data`) and ends with the last computing before the next
    one; what is exchanged in between lies in it, what is done behind it does not. Computing before the first batch on
    record is a step as well. `micro`: steps are of several micro-batches, and end with the optimizer."""
    busy, first = _busy(slices, micro)
    if not first.size:
        return {}
    begins, ends = slices.start[busy[first]], np.maximum.reduceat(slices.stop[busy], first)
    owner = slices.rank[busy[first]]
    return {number: (begins[owner == number], ends[owner == number]) for number in np.unique(owner).tolist()}


def worked(slices: Slices, micro: bool = False) -> dict[int, Floats]:
    """Return by rank the seconds of each of its steps that it worked itself: what it exchanged and waited for is left
    out, as a rank that meets a slower one in every step takes as long for it."""
    busy, first = _busy(slices, micro)
    if not first.size:
        return {}
    seconds = np.add.reduceat(slices.stop[busy] - slices.start[busy], first)
    owner = slices.rank[busy[first]]
    return {number: seconds[owner == number] for number in np.unique(owner).tolist()}


def _busy(slices: Slices, micro: bool) -> tuple[Places, Places]:
    """Return which slices are batches and computing, by rank and time; where among them steps begin."""
    category = categories(slices)
    busy = np.flatnonzero(within(category, ("data", "compute")))
    busy = busy[np.lexsort((slices.start[busy], slices.rank[busy]))]
    rank, data = slices.rank[busy], within(category[busy], ("data",))
    if micro:
        batches = np.flatnonzero(data)
        updates = np.cumsum(slices.kind[busy] == "optimizer")[batches]
        data[batches[np.diff(updates, prepend=-1) == 0]] = False
    return busy, np.flatnonzero(data | (np.diff(rank, prepend=-1) != 0))
