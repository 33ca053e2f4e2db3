"""The lanes of a run's timeline: from its records to a `Trace`. Pure.

One process per rank and one for the run. Times are since launch. `bench.timeline.trace` holds the rules of the format.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from bench.results.analysis.breakdown import CATEGORY
from bench.results.analysis.idle import LEAST_S, Gap
from bench.results.analysis.steps import steps
from bench.results.analysis.stream import Floats, RunRecords
from bench.timeline.about import Named
from bench.timeline.trace import Span, Trace
from ddp.core.commands import Abort, Drop, Join
from ddp.core.events import Averaged, AverageFailed, Failed, Snapshot
from ddp.process.operations import Operation

PHASE, COMPUTE, COMM, WAIT, POLICY, IDLE, TORCH = range(7)
LANES = {PHASE: "phase", COMPUTE: "compute", COMM: "comm", WAIT: "wait", POLICY: "policy", IDLE: "idle"}
CATEGORIES = ("compute", "data", "comm", "wait", "eval", "checkpoint", "step", "phase", "idle", "torch")
"""Of slices. The first six are those of the breakdown."""
_LANE = {"compute": COMPUTE, "data": COMPUTE, "comm": COMM, "wait": WAIT, "eval": PHASE, "checkpoint": PHASE}
"""Category of a slice -> its lane."""
LEAST_CPU_S = 0.01
"""Time over which the use of processors is measured, at least."""


def make_trace(
    stream: RunRecords,
    spec: Named,
    launched: float,
    idle: Sequence[Gap] = (),
    started: str | None = None,
    operations: Mapping[int, Sequence[Operation]] | None = None,
) -> Trace:
    """The trace of a run, with its idle gaps. Of one that was gone on with, the rest alone, but in the time of the whole:
    it was `launched` then. `started`: the wall clock at its zero, if known; `operations`: torch's, by rank,
    where they were recorded."""
    about: dict[str, object] = {
        "run_id": spec.run_id,
        "cell_hash": spec.config_hash,
        "model": spec.model,
        "mode": spec.mode,
    }
    about |= _clock(stream) | {"launched": launched, "started": started}
    trace = Trace(stream.zero, about)
    run = spec.world_size
    for rank in range(spec.world_size):
        device = stream.ready[rank].device if rank in stream.ready else "never ready"
        speed = f" · emulated speed {spec.speeds[rank]:g}" if rank < len(spec.speeds) else ""
        threads = _operations(trace, rank, (operations or {}).get(rank, ()))
        trace.process(rank, f"rank {rank} · {device}{speed}", LANES | threads)
    trace.process(run, f"run · {spec.model} {spec.mode}", {PHASE: "phase", COMM: "comm", POLICY: "policy"})
    _phases(trace, stream, launched)
    _slices(trace, stream)
    for gap in idle:
        if gap.seconds >= LEAST_S:
            trace.slice(gap.rank, IDLE, told(gap), gap.start, gap.stop, cat="idle")
    for event in stream.reduced:
        trace.slice(run, COMM, "reduce", event.at - event.seconds, event.at, {"bytes": event.bytes}, "comm")
    _flows(trace, stream)
    _counters(trace, stream, run)
    _marks(trace, stream, run)
    return trace


def _clock(stream: RunRecords) -> dict[str, object]:
    """What times are measured with, how many hosts share it, and how far a rank's may be off: at most half of the quickest
    round trip in which its host asked for the time, before the run. Clocks drift apart after that."""
    hosts = len({0, *(event.host for event in stream.ready.values())})
    errors = (event.clock_error_s for event in stream.ready.values() if math.isfinite(event.clock_error_s))
    shared = "one host" if hosts == 1 else f"{hosts} hosts, compared at the start"
    return {
        "clock": f"CLOCK_MONOTONIC, {shared}",
        "clock_error_us": math.ceil(max(errors, default=0.0) * 1e6),
        "hosts": hosts,
    }


def _operations(trace: Trace, rank: int, operations: Sequence[Operation]) -> dict[int, str]:
    """Torch's operations, a lane for each thread that has some, the busiest first; the names of these lanes."""
    threads: dict[int, list[Operation]] = defaultdict(list)
    for each in operations:
        threads[each.thread].append(each)
    busiest = sorted(threads.values(), key=len, reverse=True)
    for lane, held in enumerate(busiest, TORCH):
        for each in held:
            trace.slice(rank, lane, each.name, each.at, each.at + each.seconds, cat="torch")
    return {TORCH + number: "torch" + (f" {number + 1}" if number else "") for number in range(len(busiest))}


def told(gap: Gap) -> str:
    """Its cause in words."""
    if gap.by is None:
        return gap.cause
    return f"{gap.cause} {gap.by}" + (f": {gap.during}" if gap.during else "")


def _phases(trace: Trace, stream: RunRecords, launched: float) -> None:
    """Of each rank: startup, then its epochs."""
    last: dict[int, dict[int, float]] = defaultdict(dict)
    for event in stream.progress:
        last[event.rank][event.epoch] = event.at
    evaluated: dict[int, list[float]] = defaultdict(list)
    for held in stream.evaluated:
        evaluated[held.rank].append(held.at)
    for rank, ready in stream.ready.items():
        trace.slice(rank, PHASE, "startup", launched, ready.at, cat="phase")
        _epochs(trace, rank, ready.at, last[rank], evaluated[rank])


def _epochs(trace: Trace, rank: int, begin: float, last: Mapping[int, float], evaluated: Sequence[float]) -> None:
    """One slice per epoch: from the end of the previous phase to the rank's last report of the epoch. `last` has that by
    epoch, `evaluated` the ends of the rank's evaluations, ascending."""
    for epoch, end in sorted(last.items(), key=lambda item: item[1]):
        before = bisect(evaluated, end)
        begin = max([begin, *evaluated[:before][-1:]])
        trace.slice(rank, PHASE, f"epoch {epoch}", begin, end, cat="phase")
        begin = max(begin, end)


def _slices(trace: Trace, stream: RunRecords) -> None:
    """The measured slices on their lanes, steps around theirs; an exchange is waiting for the others, then the wire."""
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
    for rank, (firsts, lasts) in steps(s).items():
        each = zip(_ns(trace, firsts), _ns(trace, lasts), strict=True)
        spans[rank, COMPUTE] += [(first, last, "step", "step", None) for first, last in each]
    for (rank, lane), found in spans.items():
        trace.add(rank, lane, found)


def _ns(trace: Trace, times: Floats) -> list[int]:
    since: list[int] = np.rint(np.maximum(times - trace.zero, 0.0) * 1e9).astype(np.int64).tolist()
    return since


def _flows(trace: Trace, stream: RunRecords) -> None:
    """What ties the ranks of one reduction together."""
    _collectives(trace, stream)
    _rounds(trace, stream)


def _collectives(trace: Trace, stream: RunRecords) -> None:
    """One arrow per collective through its participants, in the order of ranks."""
    s = stream.slices
    here = (s.kind == "exchange").nonzero()[0]
    groups: dict[int, list[tuple[int, float, float]]] = {}
    for rank, seq, start, stop in zip(
        s.rank[here].tolist(), s.seq[here].tolist(), s.wire_start[here].tolist(), s.stop[here].tolist(), strict=True
    ):
        groups.setdefault(seq, []).append((rank, start, stop))
    for seq, members in groups.items():
        if len(members) > 1:
            trace.flow(COMM, "collective", seq, [(rank, (start + stop) / 2) for rank, start, stop in sorted(members)])


def _rounds(trace: Trace, stream: RunRecords) -> None:
    """Of a backend that blocks nobody one arrow per round: from snapshot to snapshot, then to where the average arrived. A
    rank speaks of either as soon as its copy is made."""
    laid_down = {event.round for event in stream.snapshots}
    told: list[Snapshot | Averaged] = [*stream.snapshots, *(e for e in stream.averaged if e.round in laid_down)]
    s = stream.slices
    copies: dict[int, list[tuple[float, float]]] = defaultdict(list)
    here = (s.kind == "copy").nonzero()[0]
    for rank, start, stop in zip(s.rank[here].tolist(), s.start[here].tolist(), s.stop[here].tolist(), strict=True):
        copies[rank].append((start, stop))
    for mine in copies.values():
        mine.sort()
    before: dict[int, float] = {}
    points: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for event in sorted(told, key=lambda event: event.at):
        mine = copies[event.rank]
        place = bisect(mine, (event.at,)) - 1
        if place >= 0 and mine[place][0] >= before.get(event.rank, 0.0):
            points[event.round].append((event.rank, sum(mine[place]) / 2))
        before[event.rank] = event.at
    for number, found in sorted(points.items()):
        if len({rank for rank, _ in found}) > 1:
            trace.flow(COMM, "round", number, found)


def _counters(trace: Trace, stream: RunRecords, run: int) -> None:
    reported: dict[int, float] = {rank: event.at for rank, event in stream.ready.items()}
    for event in stream.progress:
        if event.loss_sum is not None and event.samples:
            trace.counter(event.rank, "loss", event.at, event.loss_sum / event.samples)
        trace.counter(event.rank, "lr", event.at, event.lr)
        elapsed = event.at - reported.get(event.rank, event.at)
        if elapsed > 0:
            trace.counter(event.rank, "samples/s", event.at, event.samples / elapsed)
        reported[event.rank] = event.at
    _resources(trace, stream)
    for closed in stream.closed:
        if closed.divergence:
            trace.counter(run, "divergence", closed.at, max(closed.divergence))


def _resources(trace: Trace, stream: RunRecords) -> None:
    """Memory and processor as ranks measured them. What is said of the processor holds until the next measurement."""
    last: dict[int, tuple[float, float]] = {}
    for held in stream.memory:
        trace.counter(held.rank, "memory MB", held.at, held.rss_bytes / 1e6)
        if held.device_bytes is not None:
            trace.counter(held.rank, "GPU memory MB", held.at, held.device_bytes / 1e6)
        if held.device_use is not None:
            trace.counter(held.rank, "GPU busy", held.at, held.device_use)
        if held.cpu_s is None:
            continue
        at, used = last.setdefault(held.rank, (held.at, held.cpu_s))
        if held.at - at >= LEAST_CPU_S:
            trace.counter(held.rank, "cores busy", at, max(held.cpu_s - used, 0.0) / (held.at - at))
            last[held.rank] = held.at, held.cpu_s


def _marks(trace: Trace, stream: RunRecords, run: int) -> None:
    for at, plan in stream.plans:
        trace.mark(run, POLICY, f"anchor {plan.anchor}, counts {list(plan.counts)}", at, {"reason": plan.reason})
    for said in stream.verdicts:
        numbers = {"value": said.value, "limit": said.limit, "factor": said.factor}
        trace.mark(run, POLICY, f"guard {said.guard}: {said.verdict}", said.at, numbers)
    for at, event in stream.trouble:
        if isinstance(event, Abort):
            trace.mark(run, PHASE, f"run ended: {event.reason}", at, {})
        elif not isinstance(event, Join):
            text = event.error if isinstance(event, (Failed, AverageFailed)) else event.reason
            trace.mark(event.rank, PHASE, f"{type(event).__name__}: {text}", at, {})
            if isinstance(event, Drop):
                trace.mark(run, PHASE, f"went on without rank {event.rank}", at, {"reason": event.reason})
    windows = [(w.at, w.round) for w in stream.closed]
    begun = stream.begun
    if begun is not None:
        for (start, _), (end, number) in pairwise([(begun, -1), *windows]):
            trace.slice(run, PHASE, f"window {number}", start, end, cat="phase")
