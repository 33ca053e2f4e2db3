"""What a run learned and how fast: epochs, throughput, the target. The figures are those of the fold that also feeds
live views (`bench.results.live.run`, `ddp.core.figures.summary`)."""

from __future__ import annotations

import math

from bench.results.analysis.breakdown import Spans, absences
from bench.results.analysis.steady import steady
from bench.results.analysis.stream import RunRecords
from bench.results.live.run import RankFigures
from bench.results.schema import Epoch, TargetReached, Throughput
from ddp.core.figures.exact_means import Scalars
from ddp.core.figures.summary import EpochFigures


class Finite:
    """Turns numbers that are not finite into None, and collects their names."""

    def __init__(self) -> None:
        self.lost: list[str] = []

    def __call__(self, name: str, value: float | None) -> float | None:
        """Return `value` if it is finite, else None. None means not finite, as in events."""
        if value is not None and math.isfinite(value):
            return value
        self.lost.append(name)
        return None


def train_seconds(stream: RunRecords) -> float:
    """Return the seconds of training, from the last rank ready to the last rank finished (or the last record, if the
    run was cut short)."""
    if stream.clock is None:
        return 0.0
    finished = [event.at for event in stream.finished.values()]
    return stream.clock.at(max(finished or stream.last_at.values()))


def epoch_row(figures: EpochFigures, world_size: int, finite: Finite) -> Epoch:
    """Return the row of an epoch in `metrics.json`."""
    name = f"epochs.{figures.epoch}"
    evaluated = figures.eval_samples > 0
    return Epoch(
        epoch=figures.epoch,
        samples=figures.seen,
        train_loss=finite(f"{name}.train_loss", figures.loss),
        eval=finite(f"{name}.eval", figures.eval) if evaluated else None,
        eval_loss=finite(f"{name}.eval_loss", figures.eval_loss) if evaluated else None,
        lr=figures.lr,
        seconds=figures.seconds,
        scalars=_known(f"{name}.scalars", figures.scalars, finite),
        scalars_per_rank=[
            _known(f"{name}.scalars_per_rank.{rank}", figures.rank_scalars.get(rank, {}), finite)
            for rank in range(world_size)
        ],
    )


def _known(name: str, means: Scalars, finite: Finite) -> Scalars:
    return {scalar: finite(f"{name}.{scalar}", value) for scalar, value in means.items()}


def target(rows: list[Epoch], value: float | None, higher_is_better: bool, timing: bool = True) -> TargetReached:
    """Return when the metric first reached `value`; not reached if `value` is None. Without `timing` it has no
    seconds."""
    for row in rows:
        if (
            value is not None
            and row.eval is not None
            and (row.eval >= value if higher_is_better else row.eval <= value)
        ):
            return TargetReached(
                value=value, reached=True, samples=row.samples, seconds=row.seconds if timing else None
            )
    return TargetReached(value=value, reached=False, samples=None, seconds=None)


UNTIMED = Throughput(samples_per_s=None, per_rank=[], efficiency=None)
"""The throughput of a run without timing."""


def throughput(stream: RunRecords, world_size: int, seconds: float) -> Throughput:
    """Return the speed over `seconds` of training, and its ratio to that of the same ranks if they never waited."""
    ranks = [stream.figures.ranks.get(rank, RankFigures()) for rank in range(world_size)]
    samples, busy = [rank.samples - rank.earlier for rank in ranks], [rank.busy_s for rank in ranks]
    rate = samples_per_s(stream, world_size, seconds)
    if rate is None:
        return Throughput(samples_per_s=None, per_rank=[0.0] * world_size, efficiency=None)
    away = absences(stream, world_size)
    there = [_there(stream, rank, away.get(rank, ()), seconds) / seconds for rank in range(world_size)]
    bound = sum(n / s * t for n, s, t in zip(samples, busy, there, strict=True) if s > 0)
    return Throughput(
        samples_per_s=rate,
        per_rank=[n / seconds for n in _trained(stream, world_size)],
        efficiency=rate / bound if bound > 0 and not stream.hidden else None,
        steady=None if stream.hidden else steady(stream, world_size),
    )


def samples_per_s(stream: RunRecords, world_size: int, seconds: float) -> float | None:
    """Return the samples per second of all ranks that entered the model; None if `seconds` is 0."""
    return sum(_trained(stream, world_size)) / seconds if seconds > 0 else None


def _trained(stream: RunRecords, world_size: int) -> list[int]:
    """Return the samples of each rank; for a lost rank only those that entered the model."""
    ranks = [stream.figures.ranks.get(rank, RankFigures()) for rank in range(world_size)]
    samples = [rank.samples - rank.earlier for rank in ranks]
    for rank, kept in stream.kept().items():
        samples[rank] = min(samples[rank], kept)
    return samples


def _there(stream: RunRecords, rank: int, away: Spans, seconds: float) -> float:
    """Return the seconds of training during which the rank was present; 0 if it was lost before it trained. `away`: when
    it was absent."""
    if stream.clock is None:
        return seconds
    end = seconds
    if rank in stream.drops:
        end = min(stream.clock.at(stream.last_at[rank]), seconds) if rank in stream.last_at else 0.0
    return end - sum(min(stream.clock.at(until), end) - min(stream.clock.at(since), end) for since, until in away)
