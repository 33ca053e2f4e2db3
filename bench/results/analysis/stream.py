"""The records of a run by kind, with the figures that `bench.results.live.run` folds from them. Computes nothing
else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np

from bench.results.analysis.histories import Move
from bench.results.analysis.slices import Flags as Flags
from bench.results.analysis.slices import Floats as Floats
from bench.results.analysis.slices import Places as Places
from bench.results.analysis.slices import Slices as Slices
from bench.results.analysis.slices import expose
from bench.results.analysis.slices import numbered as numbered
from bench.results.live.run import RunFigures, Trouble
from ddp.core.figures.summary import EpochFigures
from ddp.core.figures.training_clock import Evaluation, TrainingClock
from ddp.core.messages.commands import Abort, Drop, Join, Leave, Plan, Restart, SendState
from ddp.core.messages.events import (
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
from ddp.core.messages.join_events import Joined, Joining
from ddp.core.samples.spans import measure
from ddp.process.codec import Record

HIDDEN = "hidden"
"""Kind of a slice that another thread recorded concurrently with training."""
T = TypeVar("T")


@dataclass(frozen=True)
class RunRecords:
    """The records of a run by kind, each in the order recorded. Ready, finished and last records are by rank."""

    slices: Slices
    behind: Slices = field(default_factory=lambda: Slices.of(()))
    """Collectives that ran concurrently with training; their kind is `exchange`, too."""
    zero: float = 0.0
    """Launch of the run, or of the first run that this one resumes: times are shown since then."""
    ready: dict[int, Ready] = field(default_factory=dict)
    finished: dict[int, Finished] = field(default_factory=dict)
    last_at: dict[int, float] = field(default_factory=dict)
    """End of the last record of a rank."""
    plans: list[tuple[float, Plan]] = field(default_factory=list)
    """(time of the event before it, plan)."""
    trouble: list[tuple[float, Trouble]] = field(default_factory=list)
    """Faults, the reactions to them, and groups that end or begin, in order, each with its time."""
    moves: list[tuple[float, Move]] = field(default_factory=list)
    """Records that say that ranks leave or return, or form groups, each with its time."""
    drops: dict[int, float] = field(default_factory=dict)
    """Rank -> when the run went on without it. Its later records are ignored."""
    evaluations: list[Evaluation] = field(default_factory=list)
    resumed: Resumed | None = None
    """The resumption with which this part begins; None: the run's beginning."""
    earlier: RunRecords | None = None
    """The records before that resumption, which are in the model of its checkpoint. Without slices."""
    figures: RunFigures = field(default_factory=RunFigures)
    """Figures of the whole run; and its epochs with any training."""
    epochs: list[EpochFigures] = field(default_factory=list)

    by_kind: defaultdict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    """Name of a kind -> its records. Later records of a lost rank are left out, except for what it contributed."""

    def of(self, kind: type[T]) -> list[T]:
        """Return the records of a kind, in the order recorded."""
        return self.by_kind.get(kind.__name__, [])

    def kept(self) -> dict[int, int]:
        """Return rank -> samples that entered the model, for each rank that was ever lost."""
        samples = dict.fromkeys(sorted({record.rank for _, record in self.trouble if isinstance(record, Drop)}), 0)
        for event in self.of(Merged) if samples else ():
            if event.rank in samples:
                samples[event.rank] += measure(event.spans)
        return samples

    @property
    def parts_in_turn(self) -> list[RunRecords]:
        """All parts of a resumed run, the earliest first."""
        return [*(self.earlier.parts_in_turn if self.earlier is not None else ()), self]

    @property
    def resumptions(self) -> list[Resumed]:
        """The resumptions from the checkpoint with which this part begins, in order: several, if no work between them was
        kept."""
        every = [part.resumed for part in self.parts_in_turn if part.resumed is not None]
        return [each for each in every if self.resumed is not None and each.index == self.resumed.index]

    @property
    def hidden(self) -> bool:
        """Ranks synchronize inside every step, but no collective is recorded: forward, backward and optimizer contain
        it. So it is in PyTorch's engines."""
        return any(plan.in_step for _, plan in self.plans) and not bool((self.slices.kind == "exchange").any())

    @cached_property
    def clock(self) -> TrainingClock | None:
        """The training clock; None if no rank became ready."""
        return None if self.begun is None else TrainingClock(self.begun, self.evaluations)

    @property
    def begun(self) -> float | None:
        """When the last rank became ready; None if none did."""
        return max((event.at for event in self.ready.values()), default=None)


def ranks_before(stream: RunRecords) -> list[int]:
    """Return the earlier numbers of ranks of a run, one for each resumption with another number."""
    return [part.resumed.ranks for part in stream.parts_in_turn if part.resumed is not None and part.resumed.ranks]


class SplitRecords(NamedTuple):
    """The records of a run in order of time, with slices, by far the most, separated."""

    events: list[Record]
    slices: Slices
    seconds: Floats
    """Duration of each slice, as recorded."""
    began: float | None
    """The first recorded time."""

    @staticmethod
    def of(events: list[Record], slices: Sequence[Slice], began: float | None) -> SplitRecords:
        """Return the records with slices as columns."""
        return SplitRecords(events, Slices.of(slices), np.array([each.seconds for each in slices], np.float64), began)


def split(records: Iterable[Record]) -> SplitRecords:
    """Separate slices from other records."""
    every = list(records)
    events, slices = list[Record](), list[Slice]()
    for record in every:
        (slices if type(record) is Slice else events).append(record)  # type: ignore[arg-type]
    return SplitRecords.of(events, slices, next((record.at for record in every if hasattr(record, "at")), None))


def sort(records: Sequence[Record] | SplitRecords | RunRecords, launched: float) -> RunRecords:
    """Sort `records`, which are in order of time, by kind. `launched`: time before the first one. `RunRecords` are
    returned as they are."""
    if isinstance(records, RunRecords):
        return records
    events, measured, _, began = records if isinstance(records, SplitRecords) else split(records)
    since = max((record.at for record in events if isinstance(record, Resumed)), default=-np.inf)
    late, behind = measured.start >= since, measured.kind == HIDDEN
    slices, hidden = measured.where(late & ~behind), measured.where(late & behind)
    hidden = replace(hidden, kind=np.full(hidden.kind.size, "exchange"))
    slices = expose(slices, hidden)
    figures, epochs = RunFigures(heard=launched), list[EpochFigures]()
    zero = launched if began is None else min(launched, began)  # records of an earlier version begin after the launch

    def part(last: bool, resumed: Resumed | None = None, earlier: RunRecords | None = None) -> RunRecords:
        stream = RunRecords(
            slices if last else Slices.of(()),
            hidden if last else Slices.of(()),
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


def _enter(stream: RunRecords, record: Record, now: float) -> None:
    stream.by_kind[type(record).__name__].append(record)
    match record:
        case Plan():
            stream.plans.append((now, record))
        case Ready():
            stream.ready[record.rank] = record
        case Finished():
            stream.finished[record.rank] = record
        case Evaluated():
            stream.evaluations.append(Evaluation(record.at, record.seconds, stream.figures.epochs.present))
        case Joined():
            stream.drops.pop(record.rank, None)
            stream.trouble.append((now, record))
        case Failed() | Lost() | AverageFailed() | Drop() | Abort() | Leave() | Join() | Resumed():
            stream.trouble.append((now, record))
            if isinstance(record, Drop):
                stream.drops[record.rank] = now
    if isinstance(record, Drop | Restart | Joining | Joined | Join | Leave | SendState):
        stream.moves.append((now, record))
    if isinstance(record, Ready | Finished | Progress | Evaluated | Averaged | Failed | Joined):
        _seen(stream, record.rank, record.at)


def _seen(stream: RunRecords, rank: int, at: float) -> None:
    stream.last_at[rank] = max(at, stream.last_at.get(rank, at))
