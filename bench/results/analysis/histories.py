"""The history of each rank: when it was present, lost, noticed as lost, restarted and back, and how much of its
training is in the model. A fold over records, which must be in order of time within each kind. Knows nothing of
slices."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ddp.core.messages.commands import Drop, Join, Leave, Restart, SendState
from ddp.core.messages.events import AverageFailed, Finished, Merged, Progress, Ready
from ddp.core.messages.join_events import Joined, Joining
from ddp.core.rounds.rounds import IN_STEP
from ddp.core.samples.spans import measure

RankRecord = Ready | Progress | Merged | Finished | AverageFailed
Move = Drop | Restart | Joining | Joined | Join | Leave | SendState
"""Records that say that a rank leaves or returns. A command has the time of the event before it."""


class Stay(NamedTuple):
    """A span of a rank's time in one state, seconds: `starting`, `live`, `detecting` (lost, but not yet noticed),
    `absent`, `returning` (present, without the others' state), `restoring` or `waiting` (after its end)."""

    state: str
    start: float
    stop: float


class Regrouping(NamedTuple):
    """The ranks regroup: from when that became necessary until they were ordered to work again, seconds."""

    start: float
    ordered: float


@dataclass
class Histories:
    """The histories of `size` ranks between `begin` and `end`, seconds on the clock of the records."""

    size: int
    begin: float
    end: float = 0.0
    ready: dict[int, float] = field(default_factory=dict)
    finished: dict[int, float] = field(default_factory=dict)
    reports: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    busy: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Rank -> seconds of training before each of its reports."""
    trained: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Rank -> samples that it reported; and (`merged`) samples of it that entered the model."""
    merged: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    undone: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Rank -> times at which its step was undone because the exchange of gradients broke."""
    moves: defaultdict[int, list[tuple[float, Move]]] = field(default_factory=lambda: defaultdict(list))
    groups: list[float] = field(default_factory=list)
    """Times at which new groups were ordered."""
    partings: list[float] = field(default_factory=list)
    """Times at which the other ranks were ordered to stop for a rank that returned."""
    generation: int = -1
    in_step: bool = False
    """Gradients are exchanged inside steps, so the other replicas contain what a lost rank had trained before."""
    buffered: bool = False
    """Ranks write their slices now and then, so the last ones of a lost rank are missing."""
    saved: float | None = None
    """The run ended without the ranks' final state, and is resumed from a checkpoint that began at this time; None:
    otherwise."""

    def tell(self, record: RankRecord) -> None:
        """Add a rank's event, or the ledger's record of its samples."""
        match record:
            case Ready():
                self.ready[record.rank] = record.at
            case Progress():
                self.reports[record.rank].append(record.at)
                self.busy[record.rank].append(record.busy_s)
                self.trained[record.rank] += record.samples
            case Merged():
                self.merged[record.rank] += measure(record.spans)
            case Finished():
                self.finished[record.rank] = record.at
            case AverageFailed() if record.round == IN_STEP:
                self.undone[record.rank].append(record.at)

    def move(self, at: float, record: Move) -> None:
        """Add that a rank leaves or returns, or that groups are formed for it."""
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
        """Return the spans of a rank from `begin` to `end`. `worked`: ends of its slices, ascending."""
        ends = list(worked)
        begun = bool(self.finished) or any(
            self.reports.values()
        )  # training begins once all that were started are ready
        late = rank not in self.ready and (begun or bool(self.moves[rank]))
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
                        turn("detecting", self.last_sign(rank, ends, at, since))
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

    def last_sign(self, rank: int, ends: Sequence[float], at: float, since: float) -> float:
        """Return when a rank that was found lost at `at` ended its last known slice, or reported training after that;
        `since` if neither. `ends`: ends of its slices, ascending."""
        last = _before(ends, at, since)
        return max(last, self.last_report(rank, at)) if self.buffered else last

    def unwritten(self, rank: int, worked: Iterable[float]) -> list[tuple[float, float]]:
        """Return when a lost rank trained, as it reported, after the last slice that it had written. `worked`: ends of its
        slices."""
        spans, losses = list[tuple[float, float]](), self.losses(rank) if self.buffered else []
        ends = sorted(worked) if losses else []
        for at in losses:
            last = _before(ends, at, self.begin)
            for number in range(bisect_right(self.reports[rank], last), bisect_right(self.reports[rank], at)):
                reported, busy = self.reports[rank][number], self.busy[rank][number]
                spans.append((max(reported - busy, last), reported))
        return spans

    def regroupings(self) -> list[Regrouping]:
        """Return when the other ranks had to regroup, for ranks that were lost and ranks that returned."""
        regroupings = set[Regrouping]()
        for moves in self.moves.values():
            present = True
            for at, record in moves:
                if isinstance(record, Drop):
                    since = at if present else self._parted_for(at)
                    place = bisect_left(self.groups, at)
                    if since is not None:
                        regroupings.add(Regrouping(since, self.groups[place] if place < len(self.groups) else at))
                elif isinstance(record, Joined):
                    place = bisect_right(self.partings, at)
                    regroupings.add(Regrouping(self.partings[place - 1] if place else at, at))
                present = isinstance(record, Joined)
        return sorted(regroupings)

    def _parted_for(self, at: float) -> float | None:
        """Return when the ranks stopped for one that was lost at `at`, before it was among them; None: they did not, and go
        on as they were."""
        parting, group = _before(self.partings, at, self.begin), _before(self.groups, at, self.begin)
        return parting if parting > group else None

    def last_report(self, rank: int, before: float) -> float:
        """Return when a rank last reported training before that time; `begin` if it never did."""
        place = bisect_right(self.reports[rank], before)
        return self.reports[rank][place - 1] if place else self.begin

    def losses(self, rank: int) -> list[float]:
        """Return each time at which the loss of a rank was noticed."""
        return [at for at, record in self.moves[rank] if isinstance(record, Drop)]

    def kept(self, rank: int) -> float:
        """Return the fraction of a rank's reported samples that is in the model. 1 for a run of one rank, which keeps
        no ledger."""
        if self.size == 1 or self.saved is not None:
            return 1.0
        return min(self.merged[rank] / self.trained[rank], 1.0) if self.trained[rank] else 0.0


def _before(ends: Sequence[float], at: float, otherwise: float) -> float:
    """Return the last of ascending times up to `at`; `otherwise` if there is none."""
    place = bisect_right(ends, at)
    return ends[place - 1] if place else otherwise
