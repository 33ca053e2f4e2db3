"""Reads a run's `events.jsonl` once, for all checks, and computes the result that follows from it. Knows what is
recorded; judges nothing.

Most checks get only runs that lost nobody. Other runs train samples again and repeat rounds; of those the ledger says
what holds for the whole. After a resumption, the records describe what the checkpoint knew, and what came later.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, get_args

from bench.base.garbage import no_collections
from bench.results.analysis.stream import SplitRecords
from bench.results.chain import Seal, is_chained, lines
from bench.results.recompute import header_of, result
from bench.results.runfolder import EVENTS, METRICS, Run, there
from bench.results.schema import Metrics
from bench.validate.records.run_records import Order, Records, Work
from ddp.core.errors import ProtocolError
from ddp.core.messages.commands import Drop, LoadState, Plan, Reduce, Restart
from ddp.core.messages.events import (
    Averaged,
    Ending,
    Evaluated,
    Failed,
    Finished,
    Lost,
    Memory,
    Merged,
    Progress,
    Ready,
    Reduced,
    Resumed,
    RoundClosed,
    Saved,
    Shared,
    Slice,
    Snapshot,
    Trained,
)
from ddp.core.messages.join_events import Joined, Joining
from ddp.core.messages.run_bounds import RunEnd, RunHeader
from ddp.core.settings.faults import LOSING
from ddp.process import codec
from ddp.process.codec import Record

WANTED: tuple[type[Any], ...] = (
    *(Ready, Progress, Snapshot, Averaged, Evaluated, RoundClosed, Finished, Trained, Resumed, Saved),
    *(Plan, RunHeader, RunEnd, Reduce, Shared, Joining, Joined, Reduced, Merged, Failed, Lost, Drop, Ending, LoadState),
)
ORDERS = get_args(Order)
_KIND = re.compile(rb'"type":"(\w+)"')
_NAMES = {cls.__name__.encode() for cls in (*WANTED, *ORDERS)}
_MOST = (b'{"type":"Slice"', b'{"type":"Memory"')
"""Beginnings of the most frequent lines, which are not needed."""


@dataclass(frozen=True)
class Reading:
    """The content of an `events.jsonl`."""

    records: Records
    header: RunHeader | None = None
    """Description of the run; None: the file is older than sealed records."""
    result: Metrics | None = None
    """The result that follows from the records, without its seal; None as above."""


def records(run: Run, lost: bool = False) -> Records | None:
    """Return the records of a finished run that lost nobody, or with `lost` of any finished run; else None. Raises as
    `reading`."""
    known = reading(run) if run.metrics.status == "ok" and (lost or lost_nobody(run.metrics)) else None
    return None if known is None else known.records


def lost_nobody(m: Metrics) -> bool:
    """Return whether a run had all its ranks, undamaged, from beginning to end; slow ranks count as present."""
    return not (m.faults or m.begun_without or costly(m))


def costly(m: Metrics) -> bool:
    """Return whether a script was to take ranks away, or to damage their state."""
    return any(fault.rpartition(":")[2].partition("*")[0] in (*LOSING, "flip") for fault in m.scripted_faults)


def reading(run: Run) -> Reading | None:
    """Read what a run recorded. None if it has no events, or is of an earlier version and did not go as planned. Raises
    OSError, and ValueError that names the file and the line that cannot be read or was changed."""
    m, path = run.metrics, run.path / EVENTS
    if not there(path):
        if m.record is not None:
            raise ValueError(f"{path}: missing, though {METRICS} has its digest (record)")
        return None
    if m.record is None:
        return unsealed(run) if as_planned(m) or is_chained(path) else None
    return _read(path, path.stat().st_mtime_ns, Seal(m.record.lines, m.record.sha256))


def unsealed(run: Run) -> Reading:
    """Read the events of a run without comparing them with its result's seal. Raises as `reading`."""
    path = run.path / EVENTS
    return _read(path, path.stat().st_mtime_ns, None)


def as_planned(m: Metrics) -> bool:
    """Return whether a run finished, was not resumed, and lost nobody."""
    return m.status == "ok" and lost_nobody(m) and not m.resumed


@lru_cache(maxsize=512)
def _read(path: Path, written: int, seal: Seal | None) -> Reading:
    known = Records()
    places: dict[type[Any], list[Any]] = dict(zip(WANTED, vars(known).values(), strict=False))
    places |= dict.fromkeys(ORDERS, known.orders)
    whole = seal is not None or is_chained(path)
    with no_collections():
        every = _Every()
        for number, line in enumerate(lines(path, seal), 1):
            try:
                if whole and line.startswith(codec.SLICE_HEAD):  # by far the most frequent
                    every.slices.append(codec.decode_slice(line))
                    continue
                if not whole and not _wanted(line):
                    continue
                record = codec.decode(line)
                if whole and isinstance(record, Work):
                    known.work.append((codec.stamp(line), record))
                elif whole and isinstance(record, Drop | Restart):
                    known.moves.append((codec.stamp(line), record))
            except ProtocolError as error:
                raise ValueError(f"{path}:{number}: {error}") from None
            if isinstance(record, Slice):
                every.slices.append(record)
                continue
            every.add(record)
            if isinstance(record, Memory):
                known.add_memory(record)
            elif isinstance(record, Resumed):
                known.measure_anew()
                every.since = len(every.slices)
            if type(record) in places:
                places[type(record)].append(record)
        return Reading(known, *_recomputed(path, every, known)) if whole else Reading(known)


@dataclass
class _Every:
    """All records of a run in the order recorded; slices are kept apart."""

    slices: list[Slice] = field(default_factory=list)
    since: int = 0
    """Number of slices before the last resumption."""
    events: list[Record] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    """Number of slices before each event."""

    def add(self, event: Record) -> None:
        self.events.append(event)
        self.places.append(len(self.slices))

    def ends(self) -> list[Record]:
        """Return the first and the last record, if these are events: the header and the end of a run."""
        first = self.events[:1] if self.places[:1] == [0] else []
        return first + (self.events[-1:] if self.places[-1:] == [len(self.slices)] else [])

    def between(self) -> SplitRecords:
        """Return all records but the first and the last."""
        timed = (
            (event.at, place) for event, place in zip(self.events, self.places, strict=True) if hasattr(event, "at")
        )
        at, place = next(islice(timed, 1, None), (None, 1))
        began = self.slices[0].at if place and self.slices else at
        return SplitRecords.of(self.events[1:-1], self.slices, began)


def _wanted(line: bytes) -> bool:
    if line.startswith(_MOST):
        return False
    kind = _KIND.search(line, 0, 60)
    return kind is None or kind[1] in _NAMES


def _recomputed(path: Path, every: _Every, known: Records) -> tuple[RunHeader, Metrics]:
    """Return the run's description and its result, by all records. Adds the measurements of ranks to `known`."""
    try:
        header, between = header_of(every.ends()), every.between()
        known.add_slices(between.slices.where(slice(every.since, None)), between.seconds[every.since :])
        return header, result(every.ends(), between)
    except ValueError as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from None
    except (AssertionError, LookupError, TypeError, ArithmeticError) as error:
        raise ValueError(f"{path}: no result can be computed from it ({type(error).__name__}: {error})") from None
