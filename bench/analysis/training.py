"""What a run learnt and how fast: epochs, the stopped clock, throughput, the target.

The training clock starts when the last rank is ready and stands still during evaluation. Ranks that evaluate at different
moments stop it by their mean: it is the wall time less the evaluation seconds of the average rank.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

from bench.analysis.stream import Stream
from bench.schema import Epoch, Target, Throughput
from ddp.core.events import Evaluated, Progress


class Finite:
    """Turns numbers that are not finite into None, and remembers their names."""

    def __init__(self) -> None:
        self.lost: list[str] = []

    def __call__(self, name: str, value: float | None) -> float | None:
        """`value` if it is finite. None counts as a number that was not finite: events carry it so."""
        if value is not None and math.isfinite(value):
            return value
        self.lost.append(name)
        return None


@dataclass(frozen=True)
class Clock:
    """The training clock of a run."""

    begun: float
    ranks: int
    evaluations: list[Evaluated]

    def at(self, time: float) -> float:
        """Seconds of training until `time` (on the clock of the records)."""
        stopped = sum(min(max(time - (e.at - e.seconds), 0.0), e.seconds) for e in self.evaluations)
        return max(time - self.begun - stopped / self.ranks, 0.0)


def clock(stream: Stream) -> Clock | None:
    """None if no rank became ready."""
    begun = stream.begun
    return None if begun is None else Clock(begun, len(stream.ready), stream.evaluated)


def train_seconds(stream: Stream) -> float:
    """Seconds of training, from the last rank ready to the last finished (or the last record of a run cut short)."""
    ticking = clock(stream)
    if ticking is None:
        return 0.0
    finished = [event.at for event in stream.finished.values()]
    return ticking.at(max(finished or stream.last_at.values()))


def epochs(stream: Stream, world_size: int, finite: Finite) -> list[Epoch]:
    """One row for each epoch of which anything was trained."""
    trained: dict[int, list[Progress]] = defaultdict(list)
    for event in stream.progress:
        trained[event.epoch].append(event)
    parts: dict[int, dict[int, Evaluated]] = defaultdict(dict)
    for evaluation in stream.evaluated:
        parts[evaluation.epoch][evaluation.rank] = evaluation
    ticking = clock(stream)
    if ticking is None:
        return []
    rows: list[Epoch] = []
    for epoch in sorted(trained):
        whole = len(parts[epoch]) >= stream.parts.get(epoch, world_size)
        rows.append(_epoch(stream, ticking, trained[epoch], list(parts[epoch].values()) if whole else [], finite))
    return rows


def _epoch(stream: Stream, ticking: Clock, trained: list[Progress], parts: list[Evaluated], finite: Finite) -> Epoch:
    epoch, last = trained[-1].epoch, max(trained, key=lambda event: event.at)
    name = f"epochs.{epoch}"
    begins = {part.rank: part.at - part.seconds for part in parts}
    until = max(begins.values(), default=last.at)
    # A rank trains nothing while it evaluates, so what it reported by the end of that, it had trained at its beginning.
    ends = {part.rank: part.at for part in parts}
    samples = sum(p.samples for p in stream.progress if p.at <= ends.get(p.rank, until))
    size = sum(part.samples for part in parts)
    loss = _sum([event.loss_sum for event in trained])
    eval_loss = _sum([part.loss_sum for part in parts])
    metric = _sum([part.metric_sum for part in parts])
    return Epoch(
        epoch=epoch,
        samples=samples,
        train_loss=finite(f"{name}.train_loss", _ratio(loss, sum(event.samples for event in trained))),
        eval=finite(f"{name}.eval", _ratio(metric, size)) if size else None,
        eval_loss=finite(f"{name}.eval_loss", _ratio(eval_loss, size)) if size else None,
        lr=last.lr,
        seconds=ticking.at(until),
    )


def _sum(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) if len(known) == len(values) else None


def _ratio(total: float | None, count: int) -> float | None:
    return None if total is None or not count else total / count


def target(rows: list[Epoch], value: float, higher_is_better: bool) -> Target:
    """When the metric first reached `value`."""
    for row in rows:
        if row.eval is not None and (row.eval >= value if higher_is_better else row.eval <= value):
            return Target(value=value, reached=True, samples=row.samples, seconds=row.seconds)
    return Target(value=value, reached=False, samples=None, seconds=None)


def throughput(stream: Stream, world_size: int, seconds: float) -> Throughput:
    """Speed over `seconds` of training, and its share of what the ranks would do if they never waited."""
    samples = [0] * world_size
    busy = [0.0] * world_size
    for event in stream.progress:
        samples[event.rank] += event.samples
        busy[event.rank] += event.busy_s
    if seconds <= 0:
        return Throughput(samples_per_s=None, per_rank=[0.0] * world_size, efficiency=None)
    bound = sum(n / s for n, s in zip(samples, busy, strict=True) if s > 0)
    rate = sum(samples) / seconds
    return Throughput(
        samples_per_s=rate,
        per_rank=[n / seconds for n in samples],
        efficiency=rate / bound if bound > 0 else None,
    )
