"""The lanes of a run's timeline: builds a `Trace` from its records. Pure.

There is one process per rank and one for the run. Times are since launch. `bench.timeline.chrome_trace` knows the rules of
the format.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.results.analysis.breakdown import CATEGORY, absences
from bench.results.analysis.idle import ABSENT, LEAST_S, Gap
from bench.results.analysis.steps import steps
from bench.results.analysis.stream import Floats, RunRecords
from bench.results.training_settings import micro_batches
from bench.timeline.about import Named
from bench.timeline.chrome_trace import Span, Trace
from ddp.core.messages.commands import Abort, Drop, Join, Leave
from ddp.core.messages.events import (
    Averaged,
    AverageFailed,
    Evaluated,
    Failed,
    GuardVerdict,
    Memory,
    Progress,
    Reduced,
    Resumed,
    RoundClosed,
    Snapshot,
)
from ddp.core.messages.join_events import Joined, Joining
from ddp.process.operations import Operation

PHASE, COMPUTE, COMM, WAIT, POLICY, IDLE, TORCH = range(7)
LANES = {PHASE: "phase", COMPUTE: "compute", COMM: "comm", WAIT: "wait", POLICY: "policy", IDLE: "idle"}
CATEGORIES = ("compute", "data", "comm", "wait", "eval", "checkpoint", "step", "phase", "idle", "torch")
"""Categories of slices. The first six are those of the breakdown."""
_LANE = {"compute": COMPUTE, "data": COMPUTE, "comm": COMM, "wait": WAIT, "eval": PHASE, "checkpoint": PHASE}
"""Category of a slice -> its lane."""
LEAST_CPU_S = 0.01
"""Least seconds over which the use of processors is measured."""


def make_trace(
    stream: RunRecords,
    spec: Named,
    launched: float,
    idle: Sequence[Gap] = (),
    started: str | None = None,
    operations: Mapping[int, Sequence[Operation]] | None = None,
) -> Trace:
    """Return the trace of a run with its idle gaps. Of a resumed run it has only the last part, in the time of the
    whole run.

    `launched`: launch of that part; `started`: wall clock time at zero, if known; `operations`: torch's operations by
    rank, where recorded.
    """
    about = {"run_id": spec.run_id, "cell_hash": spec.config_hash, "model": spec.model, "mode": spec.mode}
    trace = Trace(stream.zero, about | _clock(stream) | {"launched": launched, "started": started})
    run = spec.world_size
    devices = {event.rank: event.device for event in stream.of(Joining)}
    devices |= {rank: event.device for rank, event in stream.ready.items()}
    for rank in range(spec.world_size):
        device = devices.get(rank, "never ready")
        speed = f" · emulated speed {spec.speeds[rank]:g}" if rank < len(spec.speeds) else ""
        threads = _operations(trace, rank, (operations or {}).get(rank, ()))
        trace.process(rank, f"rank {rank} · {device}{speed}", LANES | threads)
    trace.process(run, f"run · {spec.model} {spec.mode}", {PHASE: "phase", COMM: "comm", POLICY: "policy"})
    _phases(trace, stream, launched)
    _absences(trace, stream, spec.world_size)
    _slices(trace, stream, micro_batches(spec.config) > 1)
    for gap in idle:
        if gap.seconds >= LEAST_S:
            trace.slice(gap.rank, IDLE, cause(gap), gap.start, gap.stop, cat="idle")
    for event in stream.of(Reduced):
        trace.slice(run, COMM, "reduce", event.at - event.seconds, event.at, {"bytes": event.bytes}, "comm")
    _collectives(trace, stream)
    _rounds(trace, stream)
    _counters(trace, stream, run)
    _marks(trace, stream, run)
    return trace


def _clock(stream: RunRecords) -> dict[str, object]:
    """Describe the clock: what measures time, how many hosts share it, and how far a rank's clock may be off. That is
    half of the fastest round trip in which its host asked for the time before the run; clocks drift apart later."""
    hosts = len({0, *(event.host for event in stream.ready.values())})
    errors = (event.clock_error_s for event in stream.ready.values() if math.isfinite(event.clock_error_s))
    shared = "one host" if hosts == 1 else f"{hosts} hosts, compared at the start"
    return {
        "clock": f"CLOCK_MONOTONIC, {shared}",
        "clock_error_us": math.ceil(max(errors, default=0.0) * 1e6),
        "hosts": hosts,
    }


def _operations(trace: Trace, rank: int, operations: Sequence[Operation]) -> dict[int, str]:
    """Add torch's operations, one lane per thread that has some, the busiest first; return the names of these lanes."""
    threads: dict[int, list[Operation]] = defaultdict(list)
    for operation in operations:
        threads[operation.thread].append(operation)
    busiest = sorted(threads.values(), key=len, reverse=True)
    for lane, thread in enumerate(busiest, TORCH):
        for each in thread:
            trace.slice(rank, lane, each.name, each.at, each.at + each.seconds, cat="torch")
    return {TORCH + number: "torch" + (f" {number + 1}" if number else "") for number in range(len(busiest))}


def cause(gap: Gap) -> str:
    """Return the cause of a gap as text."""
    if gap.by is None:
        return gap.cause
    return f"{gap.cause} {gap.by}" + (f": {gap.during}" if gap.during else "")


def _phases(trace: Trace, stream: RunRecords, launched: float) -> None:
    """Add each rank's startup and epochs; an epoch lasts from the end of the phase before to the rank's last report of
    it."""
    last: dict[int, dict[int, float]] = defaultdict(dict)
    for progress in stream.of(Progress):
        last[progress.rank][progress.epoch] = progress.at
    evaluated: dict[int, list[float]] = defaultdict(list)
    for event in stream.of(Evaluated):
        evaluated[event.rank].append(event.at)
    begins = {event.rank: event.at for event in reversed(stream.of(Joining))}
    for rank, ready in stream.ready.items():
        trace.slice(rank, PHASE, "startup", launched, ready.at, cat="phase")
        begins[rank] = ready.at
    for rank, begin in begins.items():
        for epoch, end in sorted(last[rank].items(), key=lambda item: item[1]):
            begin = max([begin, *evaluated[rank][: bisect(evaluated[rank], end)][-1:]])
            trace.slice(rank, PHASE, f"epoch {epoch}", begin, end, cat="phase")
            begin = max(begin, end)


def _absences(trace: Trace, stream: RunRecords, world_size: int) -> None:
    """Add when the run went on without a rank."""
    end = max(stream.last_at.values(), default=0.0)
    for rank, spans in absences(stream, world_size).items() if stream.ready else ():
        for left, back in spans:
            if min(back, end) > left:
                trace.slice(rank, PHASE, ABSENT, left, min(back, end), cat="phase")


def _slices(trace: Trace, stream: RunRecords, micro: bool) -> None:
    """Add the measured slices to their lanes, with steps around them. An exchange is waiting for other ranks, then
    communication."""
    s = stream.slices
    begins, wires, ends = (_ns(trace, times) for times in (s.start, s.wire_start, s.stop))
    spans: dict[tuple[int, int], list[Span]] = defaultdict(list)
    place = {kind: (_LANE[CATEGORY[kind]], CATEGORY[kind]) for kind in set(s.kind.tolist())}
    columns = (s.rank.tolist(), s.kind.tolist(), begins, wires, ends, s.seq.tolist(), s.bytes.tolist())
    for rank, kind, start, wire, stop, seq, size in zip(*columns, strict=True):
        lane, category = place[kind]
        if kind == "exchange":
            if wire > start:
                spans[rank, WAIT].append((start, wire, "wait for ranks", "wait", {"seq": seq}))
            spans[rank, lane].append((wire, stop, kind, category, {"seq": seq, "bytes": size}))
        else:
            spans[rank, lane].append((start, stop, kind, category, {"bytes": size} if size else None))
    for rank, (firsts, lasts) in steps(s, micro).items():
        each = zip(_ns(trace, firsts), _ns(trace, lasts), strict=True)
        spans[rank, COMPUTE] += [(first, last, "step", "step", None) for first, last in each]
    for place_of_lane, slices in spans.items():
        trace.add(*place_of_lane, slices)


def _ns(trace: Trace, times: Floats) -> list[int]:
    since: list[int] = np.rint(np.maximum(times - trace.zero, 0.0) * 1e9).astype(np.int64).tolist()
    return since


def _collectives(trace: Trace, stream: RunRecords) -> None:
    """Add one arrow per collective through its ranks, in their order."""
    s = stream.slices
    groups: dict[int, list[tuple[int, float, float]]] = defaultdict(list)
    for rank, seq, start, stop in _rows(s.kind == "exchange", s.rank, s.seq, s.wire_start, s.stop):
        groups[seq].append((rank, start, stop))
    for seq, members in groups.items():
        if len(members) > 1:
            trace.flow(COMM, "collective", seq, [(rank, (start + stop) / 2) for rank, start, stop in sorted(members)])


def _rounds(trace: Trace, stream: RunRecords) -> None:
    """Add one arrow per round of a non-blocking backend: through the snapshots, then to where the average arrived. A
    rank reports each of these as soon as its copy is made."""
    rounds = {event.round for event in stream.of(Snapshot)}
    reports: list[Snapshot | Averaged] = [*stream.of(Snapshot), *(e for e in stream.of(Averaged) if e.round in rounds)]
    s = stream.slices
    copies: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for rank, start, stop in _rows(s.kind == "copy", s.rank, s.start, s.stop):
        copies[rank].append((start, stop))
    for mine in copies.values():
        mine.sort()
    before: dict[int, float] = {}
    points: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for event in sorted(reports, key=lambda event: event.at):
        mine = copies[event.rank]
        place = bisect(mine, (event.at,)) - 1
        if place >= 0 and mine[place][0] >= before.get(event.rank, 0.0):
            points[event.round].append((event.rank, sum(mine[place]) / 2))
        before[event.rank] = event.at
    for number, path in sorted(points.items()):
        if len({rank for rank, _ in path}) > 1:
            trace.flow(COMM, "round", number, path)


def _rows(chosen: NDArray[np.bool_], *columns: NDArray[Any]) -> Iterator[Any]:
    return zip(*(column[chosen].tolist() for column in columns), strict=True)


def _counters(trace: Trace, stream: RunRecords, run: int) -> None:
    """Add the values that ranks report, each from the begin of the time that its report covers."""
    reported: dict[int, float] = {rank: event.at for rank, event in stream.ready.items()}
    reports: list[Progress | Joined] = [*stream.of(Progress)]
    reports += [event for _, event in stream.trouble if isinstance(event, Joined)]
    for event in sorted(reports, key=attrgetter("at")):
        begin, reported[event.rank] = reported.get(event.rank, event.at), event.at
        if isinstance(event, Joined):
            trace.counter(event.rank, "samples/s", begin, 0.0)
            continue
        if event.loss_sum is not None and event.samples:
            trace.counter(event.rank, "loss", begin, event.loss_sum / event.samples)
        trace.counter(event.rank, "lr", begin, event.lr)
        if event.at > begin:
            trace.counter(event.rank, "samples/s", begin, event.samples / (event.at - begin))
    for rank, at in reported.items():
        trace.counter(rank, "samples/s", at, 0.0)
    _resources(trace, stream)
    for closed in stream.of(RoundClosed):
        if closed.divergence:
            trace.counter(run, "divergence", closed.at, max(closed.divergence))


def _resources(trace: Trace, stream: RunRecords) -> None:
    """Add memory and processor use as ranks measured them; processor use holds until the next measurement."""
    last: dict[int, tuple[float, float]] = {}
    for use in stream.of(Memory):
        trace.counter(use.rank, "memory MB", use.at, use.rss_bytes / 1e6)
        if use.device_bytes is not None:
            trace.counter(use.rank, "GPU memory MB", use.at, use.device_bytes / 1e6)
        if use.device_use is not None:
            trace.counter(use.rank, "GPU busy", use.at, use.device_use)
        if use.cpu_s is None:
            continue
        at, used = last.setdefault(use.rank, (use.at, use.cpu_s))
        if use.at - at >= LEAST_CPU_S:
            trace.counter(use.rank, "cores busy", at, max(use.cpu_s - used, 0.0) / (use.at - at))
            last[use.rank] = use.at, use.cpu_s


def _marks(trace: Trace, stream: RunRecords, run: int) -> None:
    for at, plan in stream.plans:
        trace.mark(run, POLICY, f"anchor {plan.anchor}, counts {list(plan.counts)}", at, {"reason": plan.reason})
    for verdict in stream.of(GuardVerdict):
        numbers = {"value": verdict.value, "limit": verdict.limit, "factor": verdict.factor}
        trace.mark(run, POLICY, f"guard {verdict.guard}: {verdict.verdict}", verdict.at, numbers)
    there = set(stream.ready)
    for at, event in stream.trouble:
        if isinstance(event, Abort):
            trace.mark(run, PHASE, f"run ended: {event.reason}", at, {})
        elif isinstance(event, Joined):
            what, how = ("back", "is back") if event.rank in there else ("joined", "has joined")
            there.add(event.rank)
            trace.mark(event.rank, PHASE, what, at, {"seconds": event.seconds})
            trace.mark(run, PHASE, f"rank {event.rank} {how}", at, {})
        elif not isinstance(event, Join | Leave | Resumed):
            text = event.error if isinstance(event, (Failed, AverageFailed)) else event.reason
            trace.mark(event.rank, PHASE, f"{type(event).__name__}: {text}", at, {})
            if isinstance(event, Drop):
                trace.mark(run, PHASE, f"went on without rank {event.rank}", at, {"reason": event.reason})
    if stream.begun is not None:
        windows = [(stream.begun, -1), *((window.at, window.round) for window in stream.of(RoundClosed))]
        for (start, _), (end, number) in pairwise(windows):
            trace.slice(run, PHASE, f"window {number}", start, end, cat="phase")
