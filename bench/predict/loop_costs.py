"""The costs of a rank's loop besides the work of its steps, from a run's records. Pure."""

from __future__ import annotations

import numpy as np

from bench.predict.steptimes import WARM
from bench.results.analysis.breakdown import wall_end
from bench.results.analysis.steps import worked
from bench.results.analysis.stream import RunRecords
from bench.results.analysis.stretches import clipped, seconds
from ddp.core.messages.events import Memory, Saved

PARTS = ("data", "forward", "backward", "optimizer")
"""Kinds of slices that make up a step."""


def gaps(stream: RunRecords, size: int, beside: float) -> tuple[float, ...]:
    """Return, by rank, seconds per step outside of any slice. Includes writing for an audit; excludes what averages
    take `beside` their slices, total seconds."""
    taken, every = worked(stream.slices), list[float]()
    for rank in range(size):
        mine = stream.slices.places(rank)
        if not stream.of(Saved):
            mine = mine[stream.slices.kind[mine] != "checkpoint"]
        begin, end = stream.ready[rank].at, wall_end(stream, rank)
        covered = seconds(clipped(stream.slices.start[mine], stream.slices.stop[mine], begin, end))
        every.append(max(end - begin - covered - beside, 0.0) / taken[rank].size)
    return tuple(every)


def beside_work(stream: RunRecords, size: int) -> float:
    """Return the processor seconds per step of a rank's process besides the work of its steps, the mean of all ranks; 0 if
    they were not recorded over steps enough."""
    slices, extra = stream.slices, list[float]()
    for rank in range(size):
        mine = slices.places(rank)
        mine = mine[np.isin(slices.kind[mine], PARTS)]
        start, stop = slices.start[mine], slices.stop[mine]
        begins = start[slices.kind[mine] == "forward"][WARM:]
        used = [each for each in stream.of(Memory) if each.rank == rank and each.cpu_s is not None]
        used = [each for each in used if begins.size and begins[0] <= each.at <= begins[-1]]
        if len(used) < 2:
            continue
        first, last = used[0], used[-1]
        steps = int(((begins > first.at) & (begins <= last.at)).sum())
        if steps >= WARM:
            work = seconds(clipped(start, stop, first.at, last.at))
            extra.append(max((last.cpu_s or 0.0) - (first.cpu_s or 0.0) - work, 0.0) / steps)
    return float(np.mean(extra)) if extra else 0.0
