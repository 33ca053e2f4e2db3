"""What a run learnt and how fast: epochs, the stopped clock, throughput, the target.

The figures of an epoch are those that a live run tells, too (`ddp.core.summary`).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from bench.results.analysis.steady import steady
from bench.results.analysis.stream import RunRecords
from bench.results.schema import Epoch, TargetReached, Throughput
from ddp.core.events import Evaluated, Progress
from ddp.core.spans import measure
from ddp.core.summary import Scalars, ended, evaluation, mean_loss, scalar_means, scalars_by_rank


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


class Trained:
    """How many samples each rank had reported by when. `reports`: in the order of their times."""

    def __init__(self, reports: Sequence[Progress]) -> None:
        self._at: dict[int, list[float]] = defaultdict(list)
        self._sums: dict[int, list[int]] = defaultdict(lambda: [0])
        for event in reports:
            self._at[event.rank].append(event.at)
            self._sums[event.rank].append(self._sums[event.rank][-1] + event.samples)

    def until(self, ends: dict[int, float], otherwise: float) -> int:
        """Samples of all ranks, of each until its time in `ends`, of the others until `otherwise`."""
        return sum(self._sums[rank][bisect_right(times, ends.get(rank, otherwise))] for rank, times in self._at.items())


def seconds_at(stream: RunRecords, time: float) -> float:
    """Seconds of training until `time`, since the start of the run: what was lost between its parts does not count."""
    before = 0.0
    if stream.earlier is not None and stream.resumed is not None:
        if time < stream.resumed.at:
            return seconds_at(stream.earlier, time)
        before = seconds_at(stream.earlier, np.nextafter(stream.resumed.at, -np.inf))
    return before + (stream.clock.at(time) if stream.clock is not None else 0.0)


def train_seconds(stream: RunRecords) -> float:
    """Seconds of training, from the last rank ready to the last finished (or the last record of a run cut short)."""
    if stream.clock is None:
        return 0.0
    finished = [event.at for event in stream.finished.values()]
    return stream.clock.at(max(finished or stream.last_at.values()))


def epochs(stream: RunRecords, world_size: int, finite: Finite) -> list[Epoch]:
    """One row for each epoch of which anything was trained."""
    trained: dict[int, list[Progress]] = defaultdict(list)
    streams = stream.parts_in_turn
    reports = [event for part in streams for event in part.progress]
    for event in reports:
        trained[event.epoch].append(event)
    parts: dict[int, dict[tuple[int, int], Evaluated]] = defaultdict(dict)
    for evaluated in (event for part in streams for event in part.evaluated):
        parts[evaluated.epoch][evaluated.rank, evaluated.part] = evaluated
    split = {epoch: ranks for part in streams for epoch, ranks in part.parts.items()}
    samples = Trained(reports)
    rows: list[Epoch] = []
    for epoch in sorted(trained):
        whole = len(parts[epoch]) >= split.get(epoch, world_size)
        told = list(parts[epoch].values()) if whole else []
        rows.append(_epoch(stream, trained[epoch], told, samples, world_size, finite))
    return rows


def _epoch(
    stream: RunRecords, trained: list[Progress], parts: list[Evaluated], samples: Trained, ranks: int, finite: Finite
) -> Epoch:
    epoch, last = trained[-1].epoch, max(trained, key=lambda event: event.at)
    name = f"epochs.{epoch}"
    until = ended(trained, parts)
    # A rank trains nothing while it evaluates, so what it reported by the end of that, it had trained at its beginning.
    ends = {part.rank: part.at for part in parts}
    size = sum(part.samples for part in parts)
    eval_loss, metric = evaluation(parts)
    return Epoch(
        epoch=epoch,
        samples=samples.until(ends, until),
        train_loss=finite(f"{name}.train_loss", mean_loss(trained)),
        eval=finite(f"{name}.eval", metric) if size else None,
        eval_loss=finite(f"{name}.eval_loss", eval_loss) if size else None,
        lr=last.lr,
        seconds=seconds_at(stream, until),
        scalars=_known(f"{name}.scalars", scalar_means(trained), finite),
        scalars_per_rank=[
            _known(f"{name}.scalars_per_rank.{rank}", means, finite)
            for rank, means in enumerate(scalars_by_rank(trained, ranks))
        ],
    )


def _known(name: str, means: Scalars, finite: Finite) -> Scalars:
    return {scalar: finite(f"{name}.{scalar}", value) for scalar, value in means.items()}


def target(rows: list[Epoch], value: float, higher_is_better: bool) -> TargetReached:
    """When the metric first reached `value`."""
    for row in rows:
        if row.eval is not None and (row.eval >= value if higher_is_better else row.eval <= value):
            return TargetReached(value=value, reached=True, samples=row.samples, seconds=row.seconds)
    return TargetReached(value=value, reached=False, samples=None, seconds=None)


def throughput(stream: RunRecords, world_size: int, seconds: float) -> Throughput:
    """Speed over `seconds` of training, and its share of what the ranks would do if they never waited."""
    samples = [0] * world_size
    busy = [0.0] * world_size
    for event in stream.progress:
        samples[event.rank] += event.samples
        busy[event.rank] += event.busy_s
    if seconds <= 0:
        return Throughput(samples_per_s=None, per_rank=[0.0] * world_size, efficiency=None)
    there = [_there(stream, rank, seconds) / seconds for rank in range(world_size)]
    bound = sum(n / s * t for n, s, t in zip(samples, busy, there, strict=True) if s > 0)
    for rank, kept in _kept(stream).items():
        samples[rank] = min(samples[rank], kept)
    rate = sum(samples) / seconds
    return Throughput(
        samples_per_s=rate,
        per_rank=[n / seconds for n in samples],
        efficiency=rate / bound if bound > 0 and not stream.hidden else None,
        steady=None if stream.hidden else steady(stream, world_size),
    )


def _there(stream: RunRecords, rank: int, seconds: float) -> float:
    """Seconds of training during which the rank was there; `seconds` if it was not lost."""
    if rank not in stream.drops or stream.clock is None:
        return seconds
    return min(stream.clock.at(stream.last_at[rank]), seconds)


def _kept(stream: RunRecords) -> dict[int, int]:
    """By lost rank, its samples that came into the model."""
    kept = dict.fromkeys(stream.drops, 0)
    for event in stream.merged if kept else ():
        if event.rank in kept:
            kept[event.rank] += measure(event.spans)
    return kept
