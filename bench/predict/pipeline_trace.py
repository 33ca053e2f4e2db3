"""What a job of many workers would do without stragglers, from a trace of its operations with `COLUMNS`, as ByteDance's
straggler analysis publishes them (OSDI 2025).

A replay starts each operation when what it waits for has ended: earlier operations of its stream, its batch's data, and
in a collective all participants. An ideal operation takes the mean time of its kind; a collective or transfer, the
median. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Op = tuple[str, int, int]
"""(kind, number in the stage, stage)."""
FORWARD, BACKWARD = "forward-compute", "backward-compute"
PASSES = (("forward", 1), ("backward", -1))
"""(direction, step to the stage that receives a pass's output)."""
GATHER, SCATTER, CLIP = "params-all-gather", "grads-reduce-scatter", "optimizer-clip-main-grad"
NORMS, EMBEDDING, OPTIMIZER = "layernorm-grads-all-reduce", "embedding-grads-all-reduce", "optimizer"
SENT = tuple(f"{way}-{act}" for way, _ in PASSES for act in ("send", "recv"))
MEDIAN = (*SENT, GATHER, SCATTER, CLIP, NORMS, EMBEDDING)
"""Kinds whose ideal time is the median; for other kinds it is the mean."""
SYNCED = (GATHER, SCATTER, CLIP)
"""Collectives of all data-parallel ranks."""
COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "seq_id", "start_ts", "duration")
TOLERATED_S = 0.01
"""A transfer that ended more than this before all participants were present counts as 0, because clocks disagree."""
NOTHING = 1e-9
"""Fraction of a step below which a loss counts as none."""
WORST = 3
"""Per cent of the workers that are healed for `Whatif.workers`."""


@dataclass
class PipelineTrace:
    """A trace as columns [steps x data-parallel ranks] for each operation."""

    start: dict[Op, Floats]
    took: dict[Op, Floats]
    workers: dict[tuple[int, int], int]
    """(data-parallel rank, stage) -> rank."""
    stages: int
    width: int
    """Number of data-parallel ranks."""
    steps: int
    before: dict[Op, list[Op]] = field(default_factory=dict)
    groups: list[list[Op]] = field(default_factory=list)

    @cached_property
    def group_of(self) -> dict[Op, int]:
        """Operation -> number of its collective, if it is in one."""
        return {op: number for number, group in enumerate(self.groups) for op in group}

    @cached_property
    def transfer(self) -> dict[Op, Floats]:
        """Seconds of each operation after all its participants are present; without others, its own time."""
        seconds = dict(self.took)
        for group in self.groups:
            there = self._met(group, np.maximum.reduce([self.start[op] for op in group]))
            for op in group:
                rest = self.start[op] + self.took[op] - there
                seconds[op] = np.where(rest <= -TOLERATED_S, 0.0, rest)
        return seconds

    @cached_property
    def ideal(self) -> dict[Op, Floats]:
        """The same in an ideal run."""
        kinds: dict[str, list[Floats]] = {}
        for op, seconds in self.transfer.items():
            kinds.setdefault(op[0], []).append(seconds)
        typical = {
            kind: float((np.median if kind in MEDIAN else np.mean)(np.concatenate(seconds)))
            for kind, seconds in kinds.items()
        }
        return {op: np.full_like(seconds, typical[op[0]]) for op, seconds in self.transfer.items()}

    @cached_property
    def order(self) -> list[Op]:
        """The operations in an order in which each follows those that it waits for. Raises ValueError for a cycle."""
        left = {op: len(self.before.get(op, ())) for op in self.took}
        after: dict[Op, list[Op]] = {}
        for op in self.took:
            for other in self.before.get(op, ()):
                after.setdefault(other, []).append(op)
        begun, order, ready = [0] * len(self.groups), list[Op](), deque(op for op, count in left.items() if not count)
        while ready:
            op = ready.popleft()
            order.append(op)
            ended = [op]
            if op in self.group_of:
                group = self.group_of[op]
                begun[group] += 1
                ended = self.groups[group] if begun[group] == len(self.groups[group]) else []
            for other in (other for each in ended for other in after.get(each, ())):
                left[other] -= 1
                if not left[other]:
                    ready.append(other)
        if len(order) < len(self.took):
            raise ValueError("its operations wait for each other in a circle")
        return order

    def _met(self, group: list[Op], there: Floats) -> Floats:
        if group[0][0] in SYNCED:
            latest: Floats = there.reshape(self.steps, self.width).max(axis=1).repeat(self.width)
            return latest
        return there

    def play(self, seconds: dict[Op, Floats]) -> float:
        """Return the mean seconds of a step if operations take these times."""
        start, end, begun = dict[Op, Floats](), dict[Op, Floats](), [0] * len(self.groups)
        nothing = np.zeros(self.steps * self.width)
        for op in self.order:
            waits = [end[other] for other in self.before.get(op, ())]
            start[op] = np.maximum.reduce(waits) if waits else nothing
            number = self.group_of.get(op)
            if number is None:
                end[op] = start[op] + seconds[op]
                continue
            begun[number] += 1
            group = self.groups[number]
            if begun[number] == len(group):
                there = self._met(group, np.maximum.reduce([start[each] for each in group]))
                end |= {each: there + seconds[each] for each in group}
        last = np.maximum.reduce([at for op, at in end.items() if op[0] == OPTIMIZER])
        return float(last.reshape(self.steps, self.width).max(axis=1).mean())

    def mixed(self, base: dict[Op, Floats], other: dict[Op, Floats], where: Callable[[Op], Any]) -> float:
        """Return the mean seconds of a step with times of `base`, replaced by those of `other` where `where` is true,
        for an operation or for each of its data-parallel ranks."""
        chosen = {op: np.broadcast_to(np.asarray(where(op)), (self.width,)) for op in base}
        masks = {op: np.tile(mask, self.steps) for op, mask in chosen.items()}
        return self.play({op: np.where(masks[op], other[op], seconds) for op, seconds in base.items()})


@dataclass(frozen=True)
class Whatif:
    """The figures of a trace: mean seconds of a step, and slowdowns relative to the ideal."""

    steps: int
    measured_s: float
    """With the recorded operations, without gaps between them."""
    ideal_s: float
    """Without stragglers."""
    slowdown: float
    by_rank: dict[int, float]
    """Data-parallel rank -> slowdown if only its operations are as recorded and all others are ideal."""
    by_stage: dict[int, float]
    by_kind: dict[str, float]
    workers: tuple[int, ...]
    """The `WORST` workers; and (`workers_part`) the fraction of the loss that disappears if they are healed."""
    workers_part: float
    last_stage_part: float
    """The fraction of the loss that disappears if the last stage is healed."""


def whatif(trace: PipelineTrace) -> Whatif:
    """Return the figures of a trace."""
    real, ideal = trace.transfer, trace.ideal
    measured, best = trace.play(real), trace.play(ideal)
    ranks = np.arange(trace.width)

    def alone(where: Callable[[Op], Any]) -> float:
        return trace.mixed(ideal, real, where) / best

    by_rank = {rank: alone(partial(_of_rank, ranks, rank)) for rank in range(trace.width)}
    by_stage = {stage: alone(partial(_of_stage, stage)) for stage in range(trace.stages)}
    by_kind = {kind: alone(partial(_of_kind, kind)) for kind in sorted({_kind(op) for op in real})}
    scores = {worker: min(by_rank[rank], by_stage[stage]) for (rank, stage), worker in trace.workers.items()}
    worst = sorted(scores, key=lambda worker: (-scores[worker], worker))[: -(-len(scores) * WORST // 100)]
    places = {place for place, worker in trace.workers.items() if worker in worst}
    healed = trace.mixed(real, ideal, lambda op: [(rank, op[2]) in places for rank in range(trace.width)])
    last = trace.mixed(real, ideal, lambda op: op[2] == trace.stages - 1)
    lost = measured - best
    parts = [(measured - after) / lost if abs(lost) > NOTHING * best else 0.0 for after in (healed, last)]
    return Whatif(trace.steps, measured, best, measured / best, by_rank, by_stage, by_kind, tuple(worst), *parts)


def _of_rank(ranks: NDArray[np.int64], rank: int, op: Op) -> NDArray[np.bool_]:
    return np.asarray(ranks == rank)


def _of_stage(stage: int, op: Op) -> bool:
    return op[2] == stage


def _of_kind(kind: str, op: Op) -> bool:
    return _kind(op) == kind


def _kind(op: Op) -> str:
    return f"{op[0].split('-')[0]}-pp-comm" if op[0] in SENT else op[0]


def depend(trace: PipelineTrace, first: dict[Op, tuple[float, float]]) -> None:
    """Fill in what each operation waits for. `first`: begin and end of the operations of the first step. Raise
    ValueError if one that is waited for is missing."""
    for stage in range(trace.stages):
        mine = sorted((op for op in first if op[2] == stage), key=lambda op: (first[op][0], op[1], op[0]))
        _stream(trace, mine, first, stage)
    sent = list[Op]()
    for way, to in PASSES:
        for op in [op for op in trace.took if op[0] == f"{way}-send"]:
            trace.groups.append([op, (f"{way}-recv", op[1], op[2] + to)])
        sent += [(f"{way}-send", op[1], op[2] - to) for op in trace.took if op[0] == f"{way}-recv"]
    trace.groups += [[op] for op in trace.took if op[0] in (GATHER, SCATTER)]
    trace.groups.append(sorted({(EMBEDDING, 0, 0), (EMBEDDING, 0, trace.stages - 1)}))
    trace.groups.append([(CLIP, 0, stage) for stage in range(trace.stages)])
    optimizers = [(OPTIMIZER, 0, stage) for stage in range(trace.stages)]
    needed = chain(*trace.groups, *trace.before.values(), sent, optimizers)
    if missing := next((op for op in needed if op not in trace.took), None):
        raise ValueError(f"it has no {missing[0]} {missing[1]} of stage {missing[2]}")


def _stream(trace: PipelineTrace, mine: list[Op], first: dict[Op, tuple[float, float]], stage: int) -> None:
    """Chain the operations `mine` of a stage, in order of their begins."""
    computed = [op for op in mine if op[0] in (FORWARD, BACKWARD)]
    _chain(trace, computed)
    for kind in SENT:
        own = [op for op in mine if op[0] == kind]
        _chain(trace, own)
        pass_ = f"{kind.split('-')[0]}-compute"
        for op in own:
            if kind.endswith("send"):
                _wait(trace, op, (pass_, op[1], stage))
            else:
                _wait(trace, (pass_, op[1], stage), op)
                if op[1]:
                    _wait(trace, op, (pass_, op[1] - 1, stage))
    begins = next(place for place, op in enumerate(computed) if op[0] == BACKWARD)
    for kind in SENT[2:]:
        if begins >= 2 and (kind, 0, stage) in trace.took:
            _wait(trace, (kind, 0, stage), computed[begins - 2])
    _chain(trace, [op for op in mine if op[0] in (GATHER, SCATTER)])
    gathers = [op for op in mine if op[0] == GATHER]
    if gathers:
        _wait(trace, next(op for op in computed if op[0] == FORWARD), gathers[-1])
    last = max(computed, key=lambda op: first[op][1])
    embedding = [(EMBEDDING, 0, stage)] if stage in (0, trace.stages - 1) else []
    scatters = sorted(op for op in mine if op[0] == SCATTER)
    ends: list[Op] = [
        ("gc", 0, stage),
        (NORMS, 0, stage),
        *embedding,
        *scatters,
        (CLIP, 0, stage),
        (OPTIMIZER, 0, stage),
    ]
    _chain(trace, [last, *(op for op in ends if op in trace.took)])


def _chain(trace: PipelineTrace, ops: Iterable[Op]) -> None:
    for before, op in pairwise(ops):
        _wait(trace, op, before)


def _wait(trace: PipelineTrace, op: Op, other: Op) -> None:
    trace.before.setdefault(op, []).append(other)
