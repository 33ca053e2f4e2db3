"""What became of each rank: when it was there, lost, noticed, started again and back, and what of its training is in the
model. A fold over records that are in the order of their times within each kind. Knows nothing of slices.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ddp.core.commands import Drop, Join, Leave, Restart, SendState
from ddp.core.events import AverageFailed, Finished, Merged, Progress, Ready
from ddp.core.join_events import Joined, Joining
from ddp.core.rounds import IN_STEP
from ddp.core.spans import measure

RankRecord = Ready | Progress | Merged | Finished | AverageFailed
Move = Drop | Restart | Joining | Joined | Join | Leave | SendState
"""What says that a rank goes or comes. A command bears the time of the event before it."""


class Stay(NamedTuple):
    """A stretch of a rank's time, seconds: `starting`, `live`, `detecting` (gone, and nobody knows), `absent`, `returning`
    (there, without the others' state), `restoring` or `waiting` (it has finished)."""

    state: str
    start: float
    stop: float


class Regrouping(NamedTuple):
    """All stand together anew: from when it was clear that they must, until work is ordered again, seconds."""

    start: float
    ordered: float


@dataclass
class Histories:
    """Of `size` ranks, between `begin` and `end` (seconds on the clock of the records)."""

    size: int
    begin: float
    end: float = 0.0
    ready: dict[int, float] = field(default_factory=dict)
    finished: dict[int, float] = field(default_factory=dict)
    reports: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    trained: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Samples by rank that it reported; and of its samples those that are in the model."""
    merged: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    undone: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """When a step of the rank was undone, as its exchange of gradients broke."""
    moves: defaultdict[int, list[tuple[float, Move]]] = field(default_factory=lambda: defaultdict(list))
    groups: list[float] = field(default_factory=list)
    """When new groups were ordered."""
    partings: list[float] = field(default_factory=list)
    """When others were to stand still for a rank that was back."""
    generation: int = -1
    in_step: bool = False
    """Gradients are exchanged inside steps: what a lost rank had trained before is in the others' replicas."""
    saved: float | None = None
    """The run ended without the ranks' state, and resumes from a checkpoint that was begun then; None: it did not."""

    def tell(self, record: RankRecord) -> None:
        """Enter what a rank said, or the line of the ledger on it."""
        match record:
            case Ready():
                self.ready[record.rank] = record.at
            case Progress():
                self.reports[record.rank].append(record.at)
                self.trained[record.rank] += record.samples
            case Merged():
                self.merged[record.rank] += measure(record.spans)
            case Finished():
                self.finished[record.rank] = record.at
            case AverageFailed() if record.round == IN_STEP:
                self.undone[record.rank].append(record.at)

    def move(self, at: float, record: Move) -> None:
        """Enter that a rank goes or comes, or that groups are formed for it."""
        match record:
            case Join() if record.generation > self.generation:
                self.generation = record.generation
                self.groups.append(at)
            case Leave() | SendState():
                if isinstance(record, Leave) or record.joins:
                    self.partings.append(at)
            case Drop() | Restart() | Joining() | Joined():
                self.moves[record.rank].append((at, record))

    def stays(self, rank: int, worked: Iterable[float]) -> list[Stay]:
        """Return the stretches of a rank from begin to end. `worked`: when its slices ended, ascending."""
        ends = list(worked)
        late = rank not in self.ready and bool(self.moves[rank] or self.finished)
        stays, state, since = list[Stay](), "absent" if late else "starting", self.begin

        def turn(to: str, at: float) -> None:
            nonlocal state, since
            at = min(max(at, since), self.end)
            stays.append(Stay(state, since, at))
            state, since = to, at

        if rank in self.ready:
            turn("live", self.ready[rank])
        for at, record in self.moves[rank]:
            match record:
                case Drop():
                    if state == "live":
                        last = bisect_right(ends, at)
                        turn("detecting", ends[last - 1] if last else since)
                    turn("absent", at)
                case Restart():
                    turn("starting", at)
                case Joining():
                    turn("returning", at)
                case Joined():
                    turn("restoring", at - record.seconds)
                    turn("live", at)
        if rank in self.finished and state == "live":
            turn("waiting", self.finished[rank])
        turn("", self.end)
        return [stay for stay in stays if stay.stop > stay.start]

    def regroupings(self) -> list[Regrouping]:
        """Return when the others had to stand together anew, for ranks that were lost and ranks that came back."""
        regroupings = []
        for at, record in (entry for moves in self.moves.values() for entry in moves):
            if isinstance(record, Drop):
                place = bisect_left(self.groups, at)
                regroupings.append(Regrouping(at, self.groups[place] if place < len(self.groups) else at))
            elif isinstance(record, Joined):
                place = bisect_right(self.partings, at)
                regroupings.append(Regrouping(self.partings[place - 1] if place else at, at))
        return sorted(set(regroupings))

    def last_report(self, rank: int, before: float) -> float:
        """Return when a rank last reported training before that time; the begin if it did not."""
        place = bisect_right(self.reports[rank], before)
        return self.reports[rank][place - 1] if place else self.begin

    def losses(self, rank: int) -> list[float]:
        """Return when it was noticed that a rank is lost, each time."""
        return [at for at, record in self.moves[rank] if isinstance(record, Drop)]

    def kept(self, rank: int) -> float:
        """Return the part of a rank's reported samples that is in the model; one rank keeps no ledger, and all it trains."""
        if self.size == 1 or self.saved is not None:
            return 1.0
        return min(self.merged[rank] / self.trained[rank], 1.0) if self.trained[rank] else 0.0
