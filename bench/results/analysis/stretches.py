"""Arithmetic of stretches of time: sets of intervals, as arrays of begins and ends. Pure."""

from __future__ import annotations

import numpy as np

from bench.results.analysis.stream import Floats

Stretches = tuple[Floats, Floats]
"""(begins, ends), seconds."""


def union(starts: Floats, stops: Floats) -> Stretches:
    """Return the union of intervals: ascending, without overlaps and without empty ones."""
    real = stops > starts
    starts, stops = starts[real], stops[real]
    if not starts.size:
        return starts, stops
    order = np.argsort(starts, kind="stable")
    starts, reached = starts[order], np.maximum.accumulate(stops[order])
    apart = np.flatnonzero(starts[1:] > reached[:-1])
    return np.concatenate([starts[:1], starts[apart + 1]]), np.concatenate([reached[apart], reached[-1:]])


def intersection(first: Stretches, second: Stretches) -> Stretches:
    """Return the time in both; neither may overlap itself, and both ascend."""
    begin = np.searchsorted(second[1], first[0], side="right")
    counts = np.maximum(np.searchsorted(second[0], first[1]) - begin, 0)
    own = np.repeat(np.arange(counts.size), counts)
    other = np.arange(own.size) + np.repeat(begin - np.cumsum(counts) + counts, counts)
    return union(np.maximum(first[0][own], second[0][other]), np.minimum(first[1][own], second[1][other]))


def without(first: Stretches, second: Stretches) -> Stretches:
    """Return the part of `first` outside of `second`; neither may overlap itself, and both ascend."""
    if not first[0].size or not second[0].size:
        return first
    outside = np.concatenate([[-np.inf], second[1]]), np.concatenate([second[0], [np.inf]])
    return intersection(first, outside)


def seconds(stretches: Stretches) -> float:
    """Return the total length, if they do not overlap."""
    return float((stretches[1] - stretches[0]).sum())


def common(first: Stretches, second: Stretches) -> float:
    """Return the seconds in both; neither may overlap itself."""
    if not first[0].size or not second[0].size:
        return 0.0
    times = np.stack(first, axis=1).ravel()
    so_far = np.repeat(np.concatenate([[0.0], np.cumsum(first[1] - first[0])]), 2)[1:-1]
    return float((np.interp(second[1], times, so_far) - np.interp(second[0], times, so_far)).sum())


def clipped(starts: Floats, stops: Floats, begin: float, end: float) -> Stretches:
    """Return the union of the parts between `begin` and `end`."""
    return union(np.clip(starts, begin, end), np.clip(stops, begin, end))
