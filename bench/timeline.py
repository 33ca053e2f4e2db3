"""The timeline of a run: `timeline.json` (Chrome trace, opens in Perfetto), with `.csv` and `.png` beside it.

Owns the trace: one process per rank and one for the run, lanes that nest, counters, marks, flows that tie a collective
together. Times are microseconds since launch. `bench.trace` holds the rules of the format, `bench.timeline_figure` draws.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.analysis.breakdown import CATEGORY
from bench.analysis.stream import Stream, sort
from bench.runfolder import write_text
from bench.spec import RunSpec
from bench.timeline_figure import draw
from bench.trace import Trace
from ddp.core.commands import Abort, Drop, Join
from ddp.core.events import AverageFailed, Failed
from ddp.runtime.codec import Record

PHASE, COMPUTE, COMM, WAIT, POLICY = range(5)
LANES = {PHASE: "phase", COMPUTE: "compute", COMM: "comm", WAIT: "wait", POLICY: "policy"}
_LANE = {"compute": COMPUTE, "data": COMPUTE, "comm": COMM, "wait": WAIT, "eval": PHASE, "checkpoint": PHASE}
"""Category of a slice -> its lane."""


def write_timeline(folder: Path, records: Sequence[Record], spec: RunSpec, launched: float) -> None:
    """Write `timeline.json`, `.csv` and `.png` of `records` into `folder`; `launched` is their zero, seconds on the
    clock of the records. Raises OSError."""
    stream = sort(records, launched)
    write_text(folder / "timeline.json", make_trace(stream, spec, launched).to_json())
    write_text(folder / "timeline.csv", _table(stream, launched))
    draw(stream, spec, launched, folder / "timeline.png")


def make_trace(stream: Stream, spec: RunSpec, launched: float) -> Trace:
    """The trace of a run."""
    trace = Trace(
        launched, {"run_id": spec.run_id, "cell_hash": spec.config_hash, "clock": "CLOCK_MONOTONIC, one host"}
    )
    run = spec.world_size
    for rank in range(spec.world_size):
        device = stream.ready[rank].device if rank in stream.ready else "never ready"
        speed = f" · emulated speed {spec.speeds[rank]:g}" if rank < len(spec.speeds) else ""
        trace.process(rank, f"rank {rank} · {device}{speed}", LANES)
        _phases(trace, stream, rank, launched)
    trace.process(run, f"run · {spec.model} {spec.mode}", {PHASE: "phase", POLICY: "policy"})
    _slices(trace, stream)
    _flows(trace, stream)
    _counters(trace, stream, run)
    _marks(trace, stream, run)
    return trace


def _phases(trace: Trace, stream: Stream, rank: int, launched: float) -> None:
    """Startup, then one slice per epoch: from the end of the previous phase to the rank's last report of the epoch."""
    if rank not in stream.ready:
        return
    begin = stream.ready[rank].at
    trace.slice(rank, PHASE, "startup", launched, begin)
    last: dict[int, float] = {}
    for event in stream.progress:
        if event.rank == rank:
            last[event.epoch] = event.at
    for epoch, end in sorted(last.items(), key=lambda item: item[1]):
        evaluated = [e.at for e in stream.evaluated if e.rank == rank and begin < e.at <= end]
        begin = max([begin, *evaluated])
        trace.slice(rank, PHASE, f"epoch {epoch}", begin, end)
        begin = max(begin, end)


def _slices(trace: Trace, stream: Stream) -> None:
    """The measured slices on their lanes; an exchange is split into waiting for the others and time on the wire."""
    s = stream.slices
    columns = (s.rank, s.kind, s.start, s.wire_start(), s.stop, s.seq, s.bytes)
    for rank, kind, start, wire, stop, seq, size in zip(*(c.tolist() for c in columns), strict=True):
        if kind == "exchange":
            if wire > start:
                trace.slice(rank, WAIT, "wait for ranks", start, wire, {"seq": seq})
            trace.slice(rank, COMM, kind, wire, stop, {"seq": seq, "bytes": size})
        else:
            trace.slice(rank, _LANE[CATEGORY[kind]], kind, start, stop, {"bytes": size} if size else None)


def _flows(trace: Trace, stream: Stream) -> None:
    """One arrow per collective through its participants, in the order of ranks."""
    s = stream.slices
    here = (s.kind == "exchange").nonzero()[0]
    groups: dict[int, list[tuple[int, float, float]]] = {}
    for rank, seq, start, stop in zip(
        s.rank[here].tolist(), s.seq[here].tolist(), s.wire_start()[here].tolist(), s.stop[here].tolist(), strict=True
    ):
        groups.setdefault(seq, []).append((rank, start, stop))
    for seq, members in groups.items():
        if len(members) > 1:
            trace.flow(COMM, "collective", seq, [(rank, (start + stop) / 2) for rank, start, stop in sorted(members)])


def _counters(trace: Trace, stream: Stream, run: int) -> None:
    reported: dict[int, float] = {rank: event.at for rank, event in stream.ready.items()}
    for event in stream.progress:
        if event.loss_sum is not None and event.samples:
            trace.counter(event.rank, "loss", event.at, event.loss_sum / event.samples)
        trace.counter(event.rank, "lr", event.at, event.lr)
        elapsed = event.at - reported.get(event.rank, event.at)
        if elapsed > 0:
            trace.counter(event.rank, "samples/s", event.at, event.samples / elapsed)
        reported[event.rank] = event.at
    for closed in stream.closed:
        if closed.divergence:
            trace.counter(run, "divergence", closed.at, max(closed.divergence))


def _marks(trace: Trace, stream: Stream, run: int) -> None:
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
            trace.slice(run, PHASE, f"window {number}", start, end)


def _table(stream: Stream, launched: float) -> str:
    """The slices as CSV: rank, kind, start and seconds since launch, seconds waited in it for other ranks."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["rank", "kind", "start_s", "seconds", "waited_s", "seq", "bytes"])
    s = stream.slices
    exchange = s.kind == "exchange"
    waited: Any = (s.wire_start() - s.start) * exchange
    columns = (s.rank, s.kind, s.start - launched, s.stop - s.start, waited, s.seq, s.bytes)
    for rank, kind, start, seconds, wait, seq, size in zip(*(c.tolist() for c in columns), strict=True):
        writer.writerow([rank, kind, f"{start:.6f}", f"{seconds:.6f}", f"{wait:.6f}", seq, size])
    return text.getvalue()
