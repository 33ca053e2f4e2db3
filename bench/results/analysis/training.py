"""What a run learnt and how fast: epochs, throughput, the target. Their figures are those of the fold
(`bench.results.live.run`, `ddp.core.summary`), which a live run shows, too."""

from __future__ import annotations

import math

from bench.results.analysis.steady import steady
from bench.results.analysis.stream import RunRecords
from bench.results.live.run import RankFigures
from bench.results.schema import Epoch, TargetReached, Throughput
from ddp.core.commands import Drop
from ddp.core.events import Merged
from ddp.core.exact_means import Scalars
from ddp.core.spans import measure
from ddp.core.summary import EpochFigures


class Finite:
    """Turns numbers that are not finite into None, and remembers their names."""

    def __init__(self) -> None:
        self.lost: list[str] = []

    def __call__(self, name: str, value: float | None) -> float | None:
        """Return `value` if it is finite. None counts as a number that was not finite: events carry it so."""
        if value is not None and math.isfinite(value):
            return value
        self.lost.append(name)
        return None


def train_seconds(stream: RunRecords) -> float:
    """Return the seconds of training, from the last rank ready to the last finished (or the last record of a run cut
    short)."""
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
    """Return when the metric first reached `value`; never, where there is none. Without `timing`, its seconds are
    not known."""
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
"""The speed of a run without timing."""


def throughput(stream: RunRecords, world_size: int, seconds: float) -> Throughput:
    """Return the speed over `seconds` of training, and its share of what the ranks would do if they never waited."""
    ranks = [stream.figures.ranks.get(rank, RankFigures()) for rank in range(world_size)]
    samples, busy = [rank.samples - rank.earlier for rank in ranks], [rank.busy_s for rank in ranks]
    rate = samples_per_s(stream, world_size, seconds)
    if rate is None:
        return Throughput(samples_per_s=None, per_rank=[0.0] * world_size, efficiency=None)
    there = [_there(stream, rank, seconds) / seconds for rank in range(world_size)]
    bound = sum(n / s * t for n, s, t in zip(samples, busy, there, strict=True) if s > 0)
    return Throughput(
        samples_per_s=rate,
        per_rank=[n / seconds for n in _trained(stream, world_size)],
        efficiency=rate / bound if bound > 0 and not stream.hidden else None,
        steady=None if stream.hidden else steady(stream, world_size),
    )


def samples_per_s(stream: RunRecords, world_size: int, seconds: float) -> float | None:
    """Return the samples of all ranks that came into the model in each of `seconds`; None: nobody trained."""
    return sum(_trained(stream, world_size)) / seconds if seconds > 0 else None


def _trained(stream: RunRecords, world_size: int) -> list[int]:
    """Return the samples of each rank, of a lost one those that came into the model."""
    ranks = [stream.figures.ranks.get(rank, RankFigures()) for rank in range(world_size)]
    samples = [rank.samples - rank.earlier for rank in ranks]
    for rank, kept in _kept(stream).items():
        samples[rank] = min(samples[rank], kept)
    return samples


def _there(stream: RunRecords, rank: int, seconds: float) -> float:
    """Return the seconds of training during which the rank was there; `seconds` if it was not lost."""
    if rank not in stream.drops or stream.clock is None:
        return seconds
    return min(stream.clock.at(stream.last_at[rank]), seconds)


def _kept(stream: RunRecords) -> dict[int, int]:
    """Return by rank that was lost, back or not, its samples that came into the model."""
    kept = dict.fromkeys((record.rank for _, record in stream.trouble if isinstance(record, Drop)), 0)
    for event in stream.of(Merged) if kept else ():
        if event.rank in kept:
            kept[event.rank] += measure(event.spans)
    return kept
