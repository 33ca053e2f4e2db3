"""`Records`: the records of a run's `events.jsonl` that checks need, by kind, and what follows from several of them.

Knows what is recorded; reads nothing, judges nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.results.analysis.stream import Floats, Slices
from ddp.core.messages.commands import Apply, Average, Drop, Evaluate, LoadState, Plan, Reduce, Restart, Save, Train
from ddp.core.messages.event_parts import SketchGroup, StepSketch
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
    Snapshot,
    Trained,
)
from ddp.core.messages.join_events import Joined, Joining
from ddp.core.messages.run_bounds import RunEnd, RunHeader
from ddp.sketches import decode

Order = Average | Apply | Evaluate
Work = Train | Save | Order
UNBLOCKED = "cpu"
"""The backend on which no rank waits for another."""
BETWEEN_STEPS = ("wait", "evaluate", "checkpoint")
"""Kinds of slices that lie outside of steps."""
WORK = ("data", "forward", "backward", "optimizer")
"""Kinds of slices that make a step."""
Collective = tuple[int, float, float, int]
"""A rank's part in a collective: rank, begin, end, bytes."""


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
    shared: list[Shared] = field(default_factory=list)
    joining: list[Joining] = field(default_factory=list)
    joined: list[Joined] = field(default_factory=list)
    reduced: list[Reduced] = field(default_factory=list)
    merged: list[Merged] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    drops: list[Drop] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)
    loads: list[LoadState] = field(default_factory=list)
    orders: list[Order] = field(default_factory=list)
    work: list[tuple[float, Work]] = field(default_factory=list)
    """What ranks were ordered to do, and when; empty: an earlier version."""
    moves: list[tuple[float, Drop | Restart]] = field(default_factory=list)
    """Which ranks were given up or started again, and when; empty: none, or an earlier version."""
    slices: Counter[tuple[int, str]] = field(default_factory=Counter)
    """(rank, kind) -> number of slices since the last resumption; a killed process takes its earlier measurements with
    it. Empty: an earlier version, whose slices are not read."""
    seconds: defaultdict[tuple[int, str], float] = field(default_factory=lambda: defaultdict(float))
    """(rank, kind) -> seconds of these slices."""
    spans: dict[tuple[int, str], tuple[float, float]] = field(default_factory=dict)
    """(rank, kind) -> (begin of the first slice, end of the last one)."""
    rests: defaultdict[int, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    """Rank -> (begin, end) of its slices that lie outside of steps, in no order."""
    slowed: defaultdict[int, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    """Rank -> (begin, end) of its slices of emulated slowness."""
    stepped: dict[int, Floats] = field(default_factory=dict)
    """Rank -> seconds of each step, in order: of reading, both passes and the update; only if it has slices of the same
    number of each kind."""
    collectives: defaultdict[int, list[Collective]] = field(default_factory=lambda: defaultdict(list))
    """Number of a collective -> the parts of all ranks in it."""
    hidden: defaultdict[int, list[Collective]] = field(default_factory=lambda: defaultdict(list))
    """The same for collectives that ran concurrently with training."""
    drained: defaultdict[int, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    """Rank -> (begin, end) of its waits for those of its own."""
    turned: Counter[int] = field(default_factory=Counter)
    """Rank -> how often a backward pass came directly after reading a batch, without a forward pass."""
    memory: dict[int, Memory] = field(default_factory=dict)
    """Rank -> the most memory that it measured since the last resumption."""
    processor: dict[int, tuple[Memory, Memory]] = field(default_factory=dict)
    """Rank -> its first and its last measurement of processor time."""

    @property
    def groups(self) -> tuple[SketchGroup, ...]:
        """The groups of tensors that are the rows of each sketch; empty: an earlier version made no sketches."""
        return next((event.sketched for event in self.ready if event.sketched), ())

    @property
    def losses(self) -> int:
        """Number of times that ranks left or came, each of which may break an average."""
        return max(len(self.lost), len(self.drops)) + len(self.joined)

    def measured(self) -> Records:
        """Return the records since the last resumption, of the kinds that are compared with measurements."""
        # The checkpoint that the run resumed from is one of the records of before, and the last of these: at that instant.
        began = self.resumed[-1].at if self.resumed else -inf
        return replace(
            self,
            ready=[event for event in self.ready if event.at > began],
            progress=[event for event in self.progress if event.at > began],
            evaluated=[event for event in self.evaluated if event.at > began],
            averaged=[event for event in self.averaged if event.at > began],
            saved=[event for event in self.saved if event.at > began],
            closed=[event for event in self.closed if event.at > began],
        )

    def measure_anew(self) -> None:
        """Drop all measurements, as another process resumes the run."""
        for measurements in (
            *(self.slices, self.seconds, self.spans, self.rests, self.slowed, self.turned, self.memory),
            *(self.collectives, self.hidden, self.drained, self.processor, self.stepped),
        ):
            measurements.clear()

    def add_slices(self, slices: Slices, seconds: Floats) -> None:
        """Add the slices that ranks measured since the last resumption. `seconds`: duration of each slice."""
        names, kinds = slices.kinds
        ranks, places = np.unique(slices.rank, return_inverse=True)
        groups = places * len(names) + kinds
        sums = np.bincount(groups, seconds)
        for group in dict.fromkeys(groups.tolist()):
            rank, name, mine = int(ranks[group // len(names)]), names[group % len(names)], groups == group
            self.slices[rank, name] = int(mine.sum())
            self.seconds[rank, name] = float(sums[group])
            self.spans[rank, name] = float(slices.start[mine].min()), float(slices.stop[mine].max())
        ours = (slices.kind == "wait") & (slices.seq > 0)
        rests, slowed = np.isin(slices.kind, BETWEEN_STEPS), slices.kind == "slowdown"
        for flags, rows in ((rests, self.rests), (slowed, self.slowed), (ours, self.drained)):
            some = slices.where(flags)
            for rank, *rest in _rows(some.rank, some.start, some.stop):
                rows[rank].append((rest[0], rest[1]))
        for rank, order in slices.by_rank.items():
            order = order[np.lexsort((slices.stop[order], slices.start[order]))]  # an empty step comes before the next
            parts = [seconds[order[kinds[order] == place]] for place, name in enumerate(names) if name in WORK]
            if len({len(each) for each in parts if len(each)}) == 1:
                self.stepped[rank] = np.sum([each for each in parts if len(each)], axis=0)
        passes = slices.where(np.isin(slices.kind, WORK[:3]))
        order = np.lexsort((passes.start, passes.rank))
        ranks, kinds_then = passes.rank[order], passes.kind[order]
        first = (ranks[1:] == ranks[:-1]) & (kinds_then[:-1] == "data") & (kinds_then[1:] == "backward")
        self.turned.update(ranks[1:][first].tolist())
        for kind, collectives in (("exchange", self.collectives), ("hidden", self.hidden)):
            met = slices.where(slices.kind == kind)
            for seq, *part in _rows(met.seq, met.rank, met.start, met.stop, met.bytes):
                collectives[seq].append((part[0], part[1], part[2], part[3]))

    def add_memory(self, record: Memory) -> None:
        """Add a rank's measurement of its memory and processor time."""
        if record.cpu_s is not None:
            self.processor[record.rank] = self.processor.get(record.rank, (record, record))[0], record
        most = self.memory.get(record.rank, record)
        resident = max(most.rss_bytes, record.rss_bytes)
        on_device = max(most.device_bytes or 0, record.device_bytes or 0)
        self.memory[record.rank] = replace(record, rss_bytes=resident, device_bytes=on_device)

    def torn(self) -> set[int]:
        """Return the epochs in which a run was resumed: ranks had recorded samples beyond the checkpoint, and trained
        them again, so some are recorded twice."""
        return {
            epoch
            for at in (event.at for event in self.resumed)
            for epoch in {e.epoch for e in self.trained if e.at <= at} & {e.epoch for e in self.trained if e.at > at}
        }

    def contributions(self) -> dict[int, dict[int, Snapshot | Averaged]]:
        """Return round -> rank -> the record of its contribution: its snapshot if it made one, else its `Averaged`."""
        rounds: dict[int, dict[int, Snapshot | Averaged]] = {}
        for event in self.snapshots or self.averaged:
            rounds.setdefault(event.round, {})[event.rank] = event
        return rounds

    def exchanges(self, world_size: int) -> Iterator[tuple[StepSketch, ...]]:
        """Iterate over the sketched exchanges inside steps that all ranks recorded, each as a tuple by rank.
        `world_size`: the number of ranks at the end, as a resumption may change it."""
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
        """Return epoch -> the round whose average was evaluated: the last one applied before the order to evaluate."""
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
        """Return whether a group has the same values on every rank at the end as at the beginning."""
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
        yield from (event.own for event in self.evaluated)
        yield from (event.sketch for event in (*states, *self.finished, *self.shared, *self.joined))


def _rows(*columns: NDArray[Any]) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.tolist() for column in columns), strict=True)
