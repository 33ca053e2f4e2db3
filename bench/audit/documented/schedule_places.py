"""The place in the schedule of each report, by the orders that its rank received.

A grant records how many samples all ranks have seen, and how that grows with its steps, so the place of each of its
steps is known. With a non-blocking backend, ranks are also told of the others' progress on the way. When that message
arrived is not recorded, so no place is known. Pure; must not use the engine.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddp.core.messages.commands import Join, Pace, Plan, Train
from ddp.core.messages.events import Merged, Progress, Resumed
from ddp.core.samples.spans import measure
from ddp.process.codec import Record


@dataclass
class _Grant:
    """Granted steps, and how many of them are done."""

    epoch: int
    seen: float
    pace: float
    batch: int
    left: int
    """Samples left; of a shared grant those of all its ranks."""
    own: int = 0

    def step(self) -> float:
        """Do one step; return the samples that all ranks had seen before it."""
        place = self.seen + self.pace * self.own
        size = min(self.batch, self.left)
        self.own, self.left = self.own + size, self.left - size
        return place


def places(records: Sequence[Record], batch_size: int) -> Iterator[float | None]:
    """Yield, for each report, the samples that all ranks had seen before its last step; None: not known. Only for runs
    that went as planned and were not resumed."""
    grants: dict[int, deque[_Grant]] = defaultdict(deque)
    reached: dict[int, float] = defaultdict(float)
    ordered = any(isinstance(record, Train) for record in records)
    paced = any(isinstance(record, Pace) for record in records)
    alone = len({record.rank for record in records if isinstance(record, Progress)}) == 1
    for record in records:
        if isinstance(record, Train):
            chunk, left = record.chunk, record.chunk.stop - record.chunk.start
            grants[record.rank].append(_Grant(chunk.epoch, record.seen, record.pace, chunk.batch, left))
        elif isinstance(record, Progress):
            if ordered and not paced:
                yield _last(record, grants[record.rank], reached)
            elif alone and not ordered and record.steps:
                trained, reached[record.rank] = reached[record.rank], reached[record.rank] + record.samples
                yield trained + batch_size * (record.steps - 1)
            else:
                yield None


def _last(report: Progress, grants: deque[_Grant], reached: dict[int, float]) -> float | None:
    """Return the place of the last step of a report; None: more was reported than granted."""
    place: float | None = None
    for _ in range(report.steps):
        while grants and not grants[0].left:
            grants.popleft()
        if not grants or grants[0].epoch != report.epoch:
            return None
        place = reached[report.rank] = max(reached[report.rank], grants[0].step())
    return place


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
