"""What slices show besides the breakdown: step times, stragglers, overlapped communication, idle time by cause.
Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bench.results.analysis.breakdown import Spans, absences, categories, wall_begin, wall_end, within
from bench.results.analysis.idle import by_cause, gaps
from bench.results.analysis.steps import steps, worked
from bench.results.analysis.stream import RunRecords, Slices
from bench.results.analysis.stretches import Stretches, clipped, common, seconds, union, without
from bench.results.analysis.volume import volume
from bench.results.schema import Metrics
from bench.results.schema_speed import Arrivals, IdleTime, Overlap, StepTime, TimelineTotals
from bench.results.training_settings import micro_batches
from ddp.core.messages.events import Reduced, Snapshot

WORK = ("data", "compute")


def timeline(stream: RunRecords, metrics: Metrics, config: Mapping[str, Any]) -> TimelineTotals:
    """Return the totals of a run; `metrics` has its other figures, `config` is its resolved configuration."""
    size = metrics.world_size
    ranks, away = range(len(metrics.breakdown)), absences(stream, size)
    micro = micro_batches(config) > 1
    return TimelineTotals(
        steps=step_times(stream, len(ranks), micro),
        straggler_index=straggler_index(stream, micro) if ranks else None,
        overlap=None if stream.hidden else [overlap(stream, rank, away.get(rank, ())) for rank in ranks],
        arrivals=arrivals(stream, len(ranks)),
        idle=[IdleTime.model_validate(row) for row in by_cause(gaps(stream))],
        volume=volume(metrics, config),
    )


def straggler_index(stream: RunRecords, micro: bool = False) -> float | None:
    """Return the slowest rank's median work per step, divided by the median rank's; None if no rank trained, or waiting
    inside steps is not visible."""
    medians = [] if stream.hidden else [float(np.median(each)) for each in worked(stream.slices, micro).values()]
    typical = float(np.median(medians)) if medians else 0.0
    return max(medians) / typical if typical > 0 else None


def step_times(stream: RunRecords, world_size: int, micro: bool = False) -> list[StepTime | None]:
    """Return the step times of each rank; None for a rank that trained nothing."""
    taken = {rank: 1e3 * (ends - begins) for rank, (begins, ends) in steps(stream.slices, micro).items()}
    rows: list[StepTime | None] = []
    for rank in range(world_size):
        if rank not in taken:
            rows.append(None)
            continue
        p50, p95, p99 = (float(value) for value in np.percentile(taken[rank], [50, 95, 99]))
        rows.append(StepTime(count=taken[rank].size, p50_ms=p50, p95_ms=p95, p99_ms=p99))
    return rows


def overlap(stream: RunRecords, rank: int, away: Spans = ()) -> Overlap:
    """Return a rank's communication, and how much of it overlaps its training. `away`: when it was absent; what is
    averaged then is none of its communication."""
    begin, end = wall_begin(stream, rank), wall_end(stream, rank)
    own = _of(stream.slices, rank, ("comm",), begin, end)
    beside = _of(stream.behind, rank, ("comm",), begin, end)
    averaging = (
        np.array([event.at - event.seconds for event in stream.of(Reduced)], np.float64),
        np.array([event.at for event in stream.of(Reduced)], np.float64),
    )
    left, back = np.array(away, np.float64).reshape(-1, 2).T
    averaged = without(clipped(*averaging, begin, end), union(left, back))
    comm = union(*map(np.concatenate, zip(own, beside, averaged, strict=True)))
    hidden = common(_of(stream.slices, rank, WORK, begin, end), comm)
    whole = seconds(comm)
    return Overlap(comm_s=whole, hidden_s=hidden, hidden=hidden / whole if whole > 0 else None)


def _of(s: Slices, rank: int, names: tuple[str, ...], begin: float, end: float) -> Stretches:
    """Return the intervals of these categories of a rank; for an exchange, its time on the wire."""
    mine = s.places(rank)
    mine = mine[within(categories(s)[mine], names)]
    return clipped(s.wire_start[mine], s.stop[mine], begin, end)


def arrivals(stream: RunRecords, world_size: int) -> list[Arrivals]:
    """Return, by rank, how late it arrived at collectives, or without any, at the rounds of snapshots."""
    s = stream.slices
    here = s.kind == "exchange"
    number, rank, at = s.seq[here], s.rank[here], s.start[here]
    if not here.any():
        number = np.array([event.round for event in stream.of(Snapshot)], np.int64)
        rank = np.array([event.rank for event in stream.of(Snapshot)], np.int64)
        at = np.array([event.at for event in stream.of(Snapshot)], np.float64)
    order = np.lexsort((at, number))
    number, rank, at = number[order], rank[order], at[order]
    first = np.flatnonzero(np.diff(number, prepend=number[0] - 1)) if number.size else np.zeros(0, np.int64)
    sizes = np.diff(np.append(first, number.size))
    shared = np.repeat(sizes > 1, sizes)
    late = at - np.repeat(at[first], sizes)
    last = np.zeros(number.size, bool)
    last[first + sizes - 1] = True
    chosen = np.flatnonzero(shared)
    chosen = chosen[np.argsort(rank[chosen], kind="stable")]
    of = np.split(chosen, np.searchsorted(rank[chosen], np.arange(world_size + 1)))[1:-1]
    return [_arrivals(late[mine], last[mine]) for mine in of]


def _arrivals(late: np.ndarray[Any, np.dtype[np.float64]], last: np.ndarray[Any, np.dtype[np.bool_]]) -> Arrivals:
    count, behind = late.size, int(last.sum())
    return Arrivals(
        reductions=count,
        last=behind,
        last_share=behind / count if count else None,
        late_ms=1e3 * float(late.mean()) if count else None,
    )
