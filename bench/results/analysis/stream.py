"""The records of a run, sorted by kind, and the figures that the fold makes of them. Computes nothing else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bench.results.analysis.histories import Move
from bench.results.live.run import RunFigures, Trouble
from ddp.core.commands import Abort, Drop, Join, Leave, Plan, Restart, SendState
from ddp.core.events import (
    Averaged,
    AverageFailed,
    Evaluated,
    Failed,
    Finished,
    Lost,
    Merged,
    Progress,
    Ready,
    Resumed,
    Slice,
)
from ddp.core.join_events import Joined, Joining
from ddp.core.summary import EpochFigures
from ddp.core.training_clock import TrainingClock
from ddp.process.codec import Record

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Places = NDArray[np.int64]
HIDDEN = "hidden"
"""Kind of a slice that a thread beside the one that trains has measured."""
T = TypeVar("T")


@dataclass(frozen=True)
class Slices:
    """Slices of all ranks as columns, in the order recorded."""

    rank: NDArray[np.int64]
    kind: NDArray[np.str_]
    start: Floats
    """Seconds on the clock of the records."""
    stop: Floats
    seq: NDArray[np.int64]
    bytes: NDArray[np.int64]

    @staticmethod
    def of(slices: Sequence[Slice]) -> Slices:
        """Return the columns of `slices`."""
        rows = [(s.at, s.rank, s.kind, s.seconds, s.seq, s.bytes) for s in slices]
        at, rank, kind, seconds, seq, size = zip(*rows, strict=True) if rows else ((),) * 6
        start = np.array(at, np.float64)
        return Slices(
            rank=np.array(rank, np.int64),
            kind=np.array(kind, np.str_),
            start=start,
            stop=start + np.array(seconds, np.float64),
            seq=np.array(seq, np.int64),
            bytes=np.array(size, np.int64),
        )

    @cached_property
    def by_rank(self) -> dict[int, Places]:
        """Rank -> where its slices are, by their begins."""
        order = np.lexsort((self.start, self.rank))
        ranks, first = np.unique(self.rank[order], return_index=True)
        return dict(zip(ranks.tolist(), np.split(order, first[1:]), strict=True)) if len(ranks) else {}

    def places(self, rank: int) -> Places:
        """Return where the slices of `rank` are, by their begins."""
        return self.by_rank.get(rank, np.zeros(0, np.int64))

    @cached_property
    def kinds(self) -> tuple[list[str], Places]:
        """The kinds that there are, and which of them each slice is."""
        names: dict[str, int] = {}
        codes = [names.setdefault(kind, len(names)) for kind in self.kind.tolist()]
        return list(names), np.array(codes, np.int64)

    @cached_property
    def wire_start(self) -> Floats:
        """When the wire time of each slice begins: at the last arrival at its collective; at its own start for other
        kinds. Never beyond its end."""
        begins = self.start.copy()
        exchange = self.kind == "exchange"
        if exchange.any():
            _, group = np.unique(self.seq[exchange], return_inverse=True)
            last = np.full(int(group.max()) + 1, -np.inf)
            np.maximum.at(last, group, self.start[exchange])
            begins[exchange] = last[group]
        return np.minimum(begins, self.stop)


@dataclass(frozen=True)
class RunRecords:
    """The records of a run, by kind, each in the order recorded. A rank's last words are by rank."""

    slices: Slices
    behind: Slices = field(default_factory=lambda: Slices.of(()))
    """Collectives that ran beside what `slices` hold; their kind is `exchange`, too."""
    zero: float = 0.0
    """When the run was launched, or the first run that this one goes on from: what times are shown since."""
    ready: dict[int, Ready] = field(default_factory=dict)
    finished: dict[int, Finished] = field(default_factory=dict)
    last_at: dict[int, float] = field(default_factory=dict)
    """End of the last record of a rank."""
    plans: list[tuple[float, Plan]] = field(default_factory=list)
    """With the time of the event before it."""
    trouble: list[tuple[float, Trouble]] = field(default_factory=list)
    """Faults, what was done about them, and the new groups that were formed, in their order."""
    moves: list[tuple[float, Move]] = field(default_factory=list)
    """What says that ranks go and come, and form groups for it."""
    drops: dict[int, float] = field(default_factory=dict)
    """Rank -> when the run began to go on without it. What it says later is not heard."""
    resumed: Resumed | None = None
    """What this is the rest of."""
    earlier: RunRecords | None = None
    """The records before that: what is in the model that this went on with. Without slices."""
    figures: RunFigures = field(default_factory=RunFigures)
    """Of the whole run; and its epochs of which anything was trained."""
    epochs: list[EpochFigures] = field(default_factory=list)

    by_kind: defaultdict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    """Name of a kind -> all of them. What a lost rank said later is not heard, but for what it brought in."""

    def of(self, kind: type[T]) -> list[T]:
        """Return the records of a kind, in the order recorded."""
        return self.by_kind.get(kind.__name__, [])

    @property
    def parts_in_turn(self) -> list[RunRecords]:
        """Every part of a run that was gone on with, the earliest first."""
        return [*(self.earlier.parts_in_turn if self.earlier is not None else ()), self]

    @property
    def hidden(self) -> bool:
        """Ranks were to work together inside every step, but no collective is on record: forward, backward and optimizer
        hold it. So it is in PyTorch's engines."""
        return any(plan.in_step for _, plan in self.plans) and not bool((self.slices.kind == "exchange").any())

    @cached_property
    def clock(self) -> TrainingClock | None:
        """The training clock; None if no rank became ready."""
        stops = [(event.at, event.seconds) for event in self.of(Evaluated)]
        return None if self.begun is None else TrainingClock(self.begun, len(self.ready), stops)

    @property
    def begun(self) -> float | None:
        """When the last rank became ready; None if none did."""
        return max((event.at for event in self.ready.values()), default=None)


def ranks_before(stream: RunRecords) -> list[int]:
    """Return the numbers of ranks that a run had before, one for each time that it went on with another."""
    return [part.resumed.ranks for part in stream.parts_in_turn if part.resumed is not None and part.resumed.ranks]


def sort(records: Sequence[Record] | RunRecords, launched: float) -> RunRecords:
    """Sort `records`, which are in the order of their times; `launched` is the time before the first one. What is sorted
    already is returned as it is."""
    if isinstance(records, RunRecords):
        return records
    events: list[Record] = []
    measured: list[Slice] = []
    for record in records:  # slices are by far the most
        (measured if type(record) is Slice else events).append(record)  # type: ignore[arg-type]
    since = max((record.at for record in events if isinstance(record, Resumed)), default=-np.inf)
    slices, hidden = list[Slice](), list[Slice]()
    for each in measured:
        if each.at >= since:
            (hidden if each.kind == HIDDEN else slices).append(each)
    hidden = [replace(each, kind="exchange") for each in hidden]
    figures, epochs = RunFigures(heard=launched), list[EpochFigures]()
    zero = _zero(records, launched)

    def part(last: bool, resumed: Resumed | None = None, earlier: RunRecords | None = None) -> RunRecords:
        mine, behind = (slices, hidden) if last else ([], [])
        stream = RunRecords(
            Slices.of(mine),
            Slices.of(behind),
            zero,
            resumed=resumed,
            earlier=earlier,
            figures=figures,
            epochs=epochs,
        )
        for rank, places in stream.slices.by_rank.items():
            stream.last_at[rank] = float(stream.slices.stop[places].max())
        return stream

    stream = part(last=since == -np.inf)
    for record in events:
        if isinstance(record, Resumed):
            stream = part(record.at == since, record, stream)
        epochs += figures.add(record)
        unheard = hasattr(record, "at") and getattr(record, "rank", None) in stream.drops
        if not unheard or isinstance(record, Merged | Joining | Joined):
            _enter(stream, record, getattr(record, "at", figures.heard))
    epochs += [*figures.epochs.end(), *figures.epochs.current()]
    return stream


def _zero(records: Sequence[Record], launched: float) -> float:
    """Return the first time on record, which is the launch; records of an earlier version begin behind it."""
    return min(launched, next((record.at for record in records if hasattr(record, "at")), launched))


def _enter(stream: RunRecords, record: Record, now: float) -> None:
    stream.by_kind[type(record).__name__].append(record)
    match record:
        case Plan():
            stream.plans.append((now, record))
        case Ready():
            stream.ready[record.rank] = record
        case Finished():
            stream.finished[record.rank] = record
        case Joined():
            stream.drops.pop(record.rank, None)
            stream.trouble.append((now, record))
        case Failed() | Lost() | AverageFailed() | Drop() | Abort() | Join() | Resumed():
            stream.trouble.append((now, record))
            if isinstance(record, Drop):
                stream.drops[record.rank] = now
    if isinstance(record, Drop | Restart | Joining | Joined | Join | Leave | SendState):
        stream.moves.append((now, record))
    if isinstance(record, Ready | Finished | Progress | Evaluated | Averaged | Failed | Joined):
        _seen(stream, record.rank, record.at)


def _seen(stream: RunRecords, rank: int, at: float) -> None:
    stream.last_at[rank] = max(at, stream.last_at.get(rank, at))
