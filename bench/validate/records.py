"""What checks want of a run's `events.jsonl`, read once, and the result that follows from it. Knows what is recorded; judges
nothing.

Most checks get those of runs that lost nobody: others train samples again and repeat rounds; what holds then of the whole is
the business of the ledger. Of a run that was gone on with, the records tell what its checkpoint knew of.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any, get_args

from bench.base.garbage import no_collections
from bench.results.cells import Cell
from bench.results.chain import Seal, is_chained, lines
from bench.results.recompute import header_of, result
from bench.results.runfolder import EVENTS, METRICS, Run, there
from bench.results.schema import Metrics
from ddp.core.commands import Apply, Average, Evaluate, Plan, Reduce
from ddp.core.errors import ProtocolError
from ddp.core.event_parts import SketchGroup, StepSketch
from ddp.core.events import (
    Averaged,
    Evaluated,
    Finished,
    Memory,
    Progress,
    Ready,
    Resumed,
    RoundClosed,
    Saved,
    Slice,
    Snapshot,
    Trained,
)
from ddp.core.run_bounds import RunEnd, RunHeader
from ddp.process import codec
from ddp.process.codec import Record
from ddp.sketches import decode

Order = Average | Apply | Evaluate
WANTED: tuple[type[Any], ...] = (
    *(Ready, Progress, Snapshot, Averaged, Evaluated, RoundClosed, Finished, Trained, Resumed, Saved),
    *(Plan, RunHeader, RunEnd, Reduce),
)
ORDERS = get_args(Order)
_KIND = re.compile(rb'"type":"(\w+)"')
_NAMES = {cls.__name__.encode() for cls in (*WANTED, *ORDERS)}
BETWEEN_STEPS = ("wait", "evaluate", "checkpoint")
"""Kinds of slices that lie in no step."""
Collective = tuple[int, float, float, int]
"""A rank's part in a collective: rank, begin, end, bytes."""
_MOST = (b'{"type":"Slice"', b'{"type":"Memory"')
"""How lines begin that are by far the most, and not wanted."""


@dataclass(frozen=True)
class Records:
    """Events of a run by kind, in the order recorded."""

    ready: list[Ready] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)
    averaged: list[Averaged] = field(default_factory=list)
    evaluated: list[Evaluated] = field(default_factory=list)
    closed: list[RoundClosed] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)
    trained: list[Trained] = field(default_factory=list)
    resumed: list[Resumed] = field(default_factory=list)
    saved: list[Saved] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    headers: list[RunHeader] = field(default_factory=list)
    ends: list[RunEnd] = field(default_factory=list)
    reduces: list[Reduce] = field(default_factory=list)
    orders: list[Order] = field(default_factory=list)
    slices: Counter[tuple[int, str]] = field(default_factory=Counter)
    """How many slices of each kind every rank recorded since the run was last gone on with, as what a killed process had
    measured is gone with it; empty: an earlier version, of which they are not read."""
    seconds: defaultdict[tuple[int, str], float] = field(default_factory=lambda: defaultdict(float))
    """How long they took."""
    spans: dict[tuple[int, str], tuple[float, float]] = field(default_factory=dict)
    """Begin of the first and end of the last."""
    rests: defaultdict[int, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    """Begin and end of what a rank did that is in no step, in no order."""
    collectives: defaultdict[int, list[Collective]] = field(default_factory=lambda: defaultdict(list))
    """By number, what ranks say of each that they stood in."""
    hidden: defaultdict[int, list[Collective]] = field(default_factory=lambda: defaultdict(list))
    """The same of those that went beside the training."""
    memory: dict[int, Memory] = field(default_factory=dict)
    """By rank, the most that it measured of its memory since the run was last gone on with."""

    @property
    def groups(self) -> tuple[SketchGroup, ...]:
        """What sketches are of, row by row; empty: an earlier version made none."""
        return next((event.sketched for event in self.ready if event.sketched), ())

    def measured(self) -> Records:
        """Return the records since the run was last gone on with, of those kinds that measurements are held against."""
        began = self.resumed[-1].at if self.resumed else -inf
        return replace(
            self,
            ready=[event for event in self.ready if event.at >= began],
            progress=[event for event in self.progress if event.at >= began],
            evaluated=[event for event in self.evaluated if event.at >= began],
            averaged=[event for event in self.averaged if event.at >= began],
            saved=[event for event in self.saved if event.at >= began],
            closed=[event for event in self.closed if event.at >= began],
        )

    def measure_anew(self) -> None:
        """Forget what was measured: another process goes on with the run."""
        for measurements in (
            *(self.slices, self.seconds, self.spans, self.rests, self.memory),
            *(self.collectives, self.hidden),
        ):
            measurements.clear()

    def add_slice(self, record: Slice) -> None:
        """Count a slice in."""
        key, end = (record.rank, record.kind), record.at + record.seconds
        self.slices[key] += 1
        self.seconds[key] += record.seconds
        begun, ended = self.spans.get(key, (record.at, end))
        self.spans[key] = min(begun, record.at), max(ended, end)
        if record.kind in BETWEEN_STEPS:
            self.rests[record.rank].append((record.at, end))
        elif record.kind in ("exchange", "hidden"):
            groups = self.collectives if record.kind == "exchange" else self.hidden
            groups[record.seq].append((record.rank, record.at, end, record.bytes))

    def add_memory(self, record: Memory) -> None:
        """Take in what a rank measured of its memory."""
        most = self.memory.get(record.rank, record)
        resident = max(most.rss_bytes, record.rss_bytes)
        on_device = max(most.device_bytes or 0, record.device_bytes or 0)
        self.memory[record.rank] = replace(record, rss_bytes=resident, device_bytes=on_device)

    def torn(self) -> set[int]:
        """Return the epochs in which a run was gone on with: ranks sum up beyond the snapshots that the checkpoint has of
        them, so some of their samples are told of twice."""
        return {
            epoch
            for at in (event.at for event in self.resumed)
            for epoch in {e.epoch for e in self.trained if e.at <= at} & {e.epoch for e in self.trained if e.at > at}
        }

    def contributions(self) -> dict[int, dict[int, Snapshot | Averaged]]:
        """Return round -> rank -> what tells of its contribution: its snapshot where it made one, else its answer."""
        rounds: dict[int, dict[int, Snapshot | Averaged]] = {}
        for event in self.snapshots or self.averaged:
            rounds.setdefault(event.round, {})[event.rank] = event
        return rounds

    def exchanges(self, world_size: int) -> Iterator[tuple[StepSketch, ...]]:
        """Iterate over the sketched exchanges inside steps that all ranks recorded, each by rank. `world_size`: their number
        in the end, which was another before the run went on with it."""
        changes = [event for event in self.resumed if event.ranks]
        ends, sizes = [event.at for event in changes], [*(event.ranks for event in changes), world_size]
        parts = zip([-inf, *ends], [*ends, inf], sizes, strict=True)
        for begin, end, ranks in parts:
            by_rank: list[dict[int, StepSketch]] = [{} for _ in range(ranks)]
            for event in self.progress:
                if begin <= event.at < end:
                    by_rank[event.rank] |= {sketch.step: sketch for sketch in event.exchanged if sketch.after}
            for step in sorted(set.intersection(*map(set, by_rank)) if by_rank else ()):
                yield tuple(own[step] for own in by_rank)

    def evaluated_rounds(self) -> dict[int, int]:
        """Return epoch -> the round whose average its evaluation was ordered on: the last one that was given out."""
        rounds: dict[int, int] = {}
        last: int | None = None
        applied = any(isinstance(order, Apply) for order in self.orders)
        for order in self.orders:
            if isinstance(order, Evaluate):
                if last is not None:
                    rounds.setdefault(order.epoch, last)
            elif isinstance(order, Apply) or not applied:
                last = order.round
        return rounds

    def still(self, group: int) -> bool:
        """Return whether every rank ended with a group's values as they were at the beginning."""
        began, ended = [event.sketch for event in self.ready], [event.sketch for event in self.finished]
        known = bool(ended) and all(began) and all(ended)
        return known and len({decode(text).sums[group].tobytes() for text in (*began, *ended)}) == 1

    def sketches(self) -> Iterator[str]:
        """Iterate over all sketches of models and gradients."""
        for event in self.progress:
            for step in event.exchanged:
                yield from (step.before, step.after)
        for averaged in self.averaged:
            yield from (averaged.sketch_before, averaged.sketch_after, averaged.sketch_average)
        states: list[Ready | Snapshot | Evaluated | Saved] = [
            *self.ready,
            *self.snapshots,
            *self.evaluated,
            *self.saved,
        ]
        yield from (event.sketch for event in (*states, *self.finished))


@dataclass(frozen=True)
class Reading:
    """What is in an `events.jsonl`."""

    records: Records
    header: RunHeader | None = None
    """What the run is; None: the file is from before records were sealed."""
    result: Metrics | None = None
    """The result that follows from the records, but for its seal; None as above."""


def recorded(cell: Cell, lost: bool = False) -> Iterator[tuple[Run, Records]]:
    """Iterate over the runs of a cell that have `records`. `lost`: those that lost ranks, too. Raises what that raises."""
    yield from ((run, known) for run in cell.runs if (known := records(run, lost)) is not None)


def records(run: Run, lost: bool = False) -> Records | None:
    """Read the records of a finished run that lost nobody, or with `lost` of any; else None. Raises as `reading`."""
    known = reading(run) if run.metrics.status == "ok" and (lost or lost_nobody(run.metrics)) else None
    return None if known is None else known.records


def lost_nobody(m: Metrics) -> bool:
    """Return whether a run had all its ranks from its beginning to its end."""
    return not (m.faults or m.scripted_faults or m.late)


def reading(run: Run) -> Reading | None:
    """Read what a run recorded; None without events, and of a run of an earlier version that did not go as planned. Raises
    OSError, and ValueError that names the file and line that cannot be read or was changed."""
    m, path = run.metrics, run.path / EVENTS
    if not there(path):
        if m.record is not None:
            raise ValueError(f"{path}: missing, though {METRICS} has its digest (record)")
        return None
    if m.record is None:
        return unsealed(run) if as_planned(m) or is_chained(path) else None
    return _read(path, path.stat().st_mtime_ns, Seal(m.record.lines, m.record.sha256))


def unsealed(run: Run) -> Reading:
    """Read the events of a run, whatever its result says of them. Raises as `reading`."""
    path = run.path / EVENTS
    return _read(path, path.stat().st_mtime_ns, None)


def as_planned(m: Metrics) -> bool:
    """Return whether a run finished, began at its beginning, and lost nobody."""
    return m.status == "ok" and not (m.faults or m.scripted_faults or m.resumed or m.late)


@lru_cache(maxsize=512)
def _read(path: Path, written: int, seal: Seal | None) -> Reading:
    known, every = Records(), list[Record]()
    places: dict[type[Any], list[Any]] = dict(zip(WANTED, vars(known).values(), strict=False))
    places |= dict.fromkeys(ORDERS, known.orders)
    whole = seal is not None or is_chained(path)
    with no_collections():
        for number, line in enumerate(lines(path, seal), 1):
            if not whole and (line.startswith(_MOST) or not _wanted(line)):
                continue
            try:
                record = codec.decode(line)
            except ProtocolError as error:
                raise ValueError(f"{path}:{number}: {error}") from None
            if whole:
                every.append(record)
            if isinstance(record, Slice):
                known.add_slice(record)
            elif isinstance(record, Memory):
                known.add_memory(record)
            elif isinstance(record, Resumed):
                known.measure_anew()
            if type(record) in places:
                places[type(record)].append(record)
        return Reading(known, *_recomputed(path, every)) if whole else Reading(known)


def _wanted(line: bytes) -> bool:
    kind = _KIND.search(line, 0, 60)
    return kind is None or kind[1] in _NAMES


def _recomputed(path: Path, every: list[Record]) -> tuple[RunHeader, Metrics]:
    """Return what all records of a run say that it is, and its result."""
    try:
        return header_of(every), result(every)
    except ValueError as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from None
    except (AssertionError, LookupError, TypeError, ArithmeticError) as error:
        raise ValueError(f"{path}: no result follows from it ({type(error).__name__}: {error})") from None
