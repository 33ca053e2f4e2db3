"""The place in the schedule of each report, by the orders that its rank received.

A grant records how many samples all ranks have seen, and how that grows with its steps, so the place of each of its
steps is known. With a non-blocking backend, ranks are also told of the others' progress on the way. When that message
arrived is not recorded, so the place lies between two. Pure; must not use the engine.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddp.core.messages.commands import Average, Drop, Join, Pace, Plan, Restart, Shorten, Train
from ddp.core.messages.events import AverageFailed, Merged, Progress, Resumed, Snapshot
from ddp.core.samples.spans import measure
from ddp.process.codec import Record

Place = tuple[float, float]
"""The fewest and the most samples that all ranks had seen."""


@dataclass
class _Statement:
    """What a rank was told of its place: `seen` when it had trained `early` to `late` samples itself (None: perhaps only
    now), and `pace` for each of its samples from there on."""

    seen: float
    pace: float
    early: int
    late: int | None
    rounding: int = 0
    """By how much `seen` may have been rounded down."""

    def at(self, trained: int) -> Place:
        """Return the place when the rank has trained so many samples."""
        late = trained if self.late is None else self.late
        return self.seen + self.pace * (trained - late) - self.rounding, self.seen + self.pace * (trained - self.early)


@dataclass
class _Grant:
    """Granted steps, and how many of them are done."""

    epoch: int
    batch: int
    left: int
    """Samples left; of a shared grant those of all its ranks."""
    statements: list[_Statement]


class _Course:
    """A rank's way through its grants."""

    def __init__(self) -> None:
        self.grants: deque[_Grant] = deque()
        self.known = True
        self._trained = 0
        self._reached: Place = (0.0, 0.0)
        self._paces: list[_Statement] = []
        self._unanswered: dict[int, list[_Statement]] = {}
        """Round -> the corrections between the last order to average and the one of this round."""

    def grant(self, order: Train) -> None:
        """Add a grant behind the others."""
        chunk, begin = order.chunk, self._trained + sum(grant.left for grant in self.grants)
        statements = [_Statement(order.seen, order.pace, begin, begin)]
        self.grants.append(_Grant(chunk.epoch, chunk.batch, chunk.stop - chunk.start, statements))

    def correct(self, order: Pace) -> None:
        """Note a correction of the grants that are left. The rank receives it at some later step."""
        self._paces.append(_Statement(order.seen, order.pace, self._trained, None, rounding=1))
        for grant in self.grants:
            grant.statements.append(self._paces[-1])

    def order(self, round: int) -> None:
        """Note an order to copy the replica, which the rank will answer after a report."""
        self._unanswered[round], self._paces = self._paces, []

    def answer(self, round: int) -> None:
        """Conclude from the answer that the rank has received the corrections before the order."""
        for statement in self._unanswered.pop(round, ()):
            statement.late = self._trained
        for grant in self.grants:
            last = max(at for at, statement in enumerate(grant.statements) if statement.late is not None)
            del grant.statements[:last]

    def last(self, report: Progress) -> Place | None:
        """Return the place of the last step of a report; None: not known, as when more was reported than granted."""
        place: Place | None = None
        for _ in range(report.steps if self.known else 0):
            while self.grants and not self.grants[0].left:
                self.grants.popleft()
            self.known = bool(self.grants) and self.grants[0].epoch == report.epoch
            if not self.known:
                return None
            place = self._reached = self._step(self.grants[0])
        return place

    def _step(self, grant: _Grant) -> Place:
        """Do one step; return the samples that all ranks had seen before it, a count that never decreases."""
        lows, highs = zip(*(statement.at(self._trained) for statement in grant.statements), strict=True)
        size = min(grant.batch, grant.left)
        grant.left, self._trained = grant.left - size, self._trained + size
        return max(self._reached[0], min(lows)), max(self._reached[1], *highs)


def places(records: Sequence[Record], batch_size: int) -> Iterator[Place | None]:
    """Yield, for each report, the samples that all ranks had seen before its last step; None: not known, as before the
    last resumption, when settings may have been others."""
    first = max((at for at, record in enumerate(records, 1) if isinstance(record, Resumed)), default=0)
    unclear = _unclear(records)
    courses: dict[int, _Course] = defaultdict(_Course)
    ordered = any(isinstance(record, Train) for record in records[first:])
    alone = not first and len({record.rank for record in records if isinstance(record, Progress)}) == 1
    trained = 0
    for at, record in enumerate(records):
        match record:
            case Resumed():
                courses.clear()
            case Train():
                courses[record.rank].grant(record)
            case Pace():
                courses[record.rank].correct(record)
            case Average():
                courses[record.rank].order(record.round)
            case Snapshot():
                courses[record.rank].answer(record.round)
            case Join(void=True):
                courses[record.rank].grants.clear()
            case Restart():
                courses[record.rank] = _Course()
            case Drop() | Shorten():
                courses[record.rank].known = False
            case Progress():
                place = courses[record.rank].last(record) if ordered else None
                if alone and not ordered and record.steps:
                    place = (trained + batch_size * (record.steps - 1),) * 2
                    trained += record.samples
                yield place if at >= first and at not in unclear else None


def _unclear(records: Sequence[Record]) -> set[int]:
    """Return the indices of reports that are not compared: those of a rank that was given up, as one may have been lost
    before, and those right before an exchange failed, as their rate may be that of the step that was undone."""
    reports: dict[int, list[int]] = defaultdict(list)
    unclear = set[int]()
    for at, record in enumerate(records):
        match record:
            case Progress():
                reports[record.rank].append(at)
            case AverageFailed():
                unclear.update(reports[record.rank][-1:])
            case Drop():
                unclear.update(reports.pop(record.rank, ()))
    return unclear


def misplaced(records: Sequence[Record]) -> str:
    """Name the rank that was told of a wrong number of samples seen; empty: none.

    Too few: fewer than are in the model, so its rates are outdated. Too many: more than all grants and one window
    together.
    """
    merged, granted, window, chunks = 0, 0, 0, set[tuple[int, int, int]]()
    for record in records:
        if isinstance(record, Resumed):
            merged = granted = record.samples
            chunks.clear()
        elif isinstance(record, Merged):
            merged += measure(record.spans)
        elif isinstance(record, Plan):
            window = max(window, sum(record.counts) + sum(record.ahead))
        elif isinstance(record, (Train, Pace)):
            most = granted
            if isinstance(record, Train):
                chunk = record.chunk
                most += window * chunk.batch
                place = (chunk.epoch, chunk.start, chunk.stop)
                if place not in chunks:  # all ranks that share a grant have it
                    chunks.add(place)
                    granted += chunk.stop - chunk.start
            if not merged <= record.seen <= most:
                limit = (
                    f"{merged} were in the model" if record.seen < merged else f"at most {most} are possible by then"
                )
                return f"rank {record.rank} was told that {record.seen} samples had been seen, but {limit}"
    return ""


def breaks(records: Sequence[Record]) -> Iterator[float]:
    """Yield the samples seen where the run was resumed, or where ranks that share steps met in another group."""
    met = False
    for record in records:
        if isinstance(record, Resumed):
            yield record.samples
        elif isinstance(record, Join):
            met = met or record.generation > 0
        elif isinstance(record, Train) and met:  # begins where all of the group are
            yield record.seen
            met = False


def out_of_turn(records: Sequence[Record]) -> str:
    """Name the rank whose grant does not follow the last one; empty: none. Only if all ranks share an epoch's order,
    the run went as planned and was not resumed."""
    if any(isinstance(record, Plan) and record.dispatch != "progressive" for record in records):
        return ""
    ends: dict[int, int] = defaultdict(int)
    for record in records:
        if isinstance(record, Resumed):
            return ""
        if isinstance(record, Train):
            chunk = record.chunk
            end = ends[chunk.epoch]
            if chunk.parts == 1 and chunk.start != end:
                return (
                    f"rank {record.rank} was granted position {chunk.start} of epoch {chunk.epoch}, but {end} is next"
                )
            ends[chunk.epoch] = max(chunk.stop, end)
    return ""


Turn = tuple[int, int, int, int]
"""A grant: (epoch, first position, end position, samples of a step)."""


def turns(records: Sequence[Record]) -> dict[int, list[Turn]]:
    """Return rank -> its grants in order, without grants that several ranks share."""
    grants: dict[int, list[Turn]] = defaultdict(list)
    for record in records:
        if isinstance(record, Train) and record.chunk.parts == 1:
            chunk = record.chunk
            grants[record.rank].append((chunk.epoch, chunk.start, chunk.stop, chunk.batch))
    return grants


def step_of(turns: Sequence[Turn], number: int) -> tuple[int, int, int] | None:
    """Return (epoch, first position, end position) of the rank's step `number` by its grants; None: not granted."""
    for epoch, start, stop, batch in turns:
        steps = -(-(stop - start) // batch)
        if number < steps:
            first = start + number * batch
            return epoch, first, min(first + batch, stop)
        number -= steps
    return None
