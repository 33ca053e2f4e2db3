"""The steps of a rank, derived from its slices. Pure."""

from __future__ import annotations

import numpy as np

from bench.results.analysis.breakdown import categories, within
from bench.results.analysis.stream import Floats, Places, Slices

Steps = dict[int, tuple[Floats, Floats]]
"""Rank -> (begins, ends) of its steps, seconds on the clock of the records, ascending."""


def steps(slices: Slices, micro: bool = False) -> Steps:
    """Return the steps of each rank.

    A step begins with loading a batch (`data`) and ends with the last computation before the next batch. Communication
    in between belongs to the step; communication after the last computation does not. Computation before the first
    recorded batch is also a step. `micro`: a step has several micro-batches, and ends with the optimizer.
    """
    busy, first = _busy(slices, micro)
    if not first.size:
        return {}
    begins, ends = slices.start[busy[first]], np.maximum.reduceat(slices.stop[busy], first)
    owner = slices.rank[busy[first]]
    return {number: (begins[owner == number], ends[owner == number]) for number in np.unique(owner).tolist()}


def worked(slices: Slices, micro: bool = False) -> dict[int, Floats]:
    """Return rank -> seconds of its own work in each step, without communication and waiting: a rank that synchronizes
    every step with a slower one takes as long as that."""
    busy, first = _busy(slices, micro)
    if not first.size:
        return {}
    seconds = np.add.reduceat(slices.stop[busy] - slices.start[busy], first)
    owner = slices.rank[busy[first]]
    return {number: seconds[owner == number] for number in np.unique(owner).tolist()}


def _busy(slices: Slices, micro: bool) -> tuple[Places, Places]:
    """Return the indices of slices of batches and computation, by rank and time; and where among these steps begin."""
    category = categories(slices)
    busy = np.flatnonzero(within(category, ("data", "compute")))
    busy = busy[np.lexsort((slices.start[busy], slices.rank[busy]))]
    rank, data = slices.rank[busy], within(category[busy], ("data",))
    if micro:
        batches = np.flatnonzero(data)
        updates = np.cumsum(slices.kind[busy] == "optimizer")[batches]
        data[batches[np.diff(updates, prepend=-1) == 0]] = False
    return busy, np.flatnonzero(data | (np.diff(rank, prepend=-1) != 0))
