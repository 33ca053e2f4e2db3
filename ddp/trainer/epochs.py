"""Defines `EpochMetrics`: the metrics of an epoch, delivered when all ranks have completed it. `ddp.core.figures.summary`
computes them."""

from __future__ import annotations

from dataclasses import dataclass

from ddp.core.figures.exact_means import Scalars
from ddp.core.figures.summary import EpochFigures


@dataclass(frozen=True)
class EpochMetrics:
    """Metrics of one epoch over all ranks. Tuples have one entry per rank. A value is None if it is not finite or
    was not measured."""

    epoch: int
    """Index of the epoch, from 0."""
    loss: float | None
    """Mean training loss over the samples of the epoch."""
    eval: float | None
    """Mean of the evaluation metric over the samples of the evaluation data."""
    eval_loss: float | None
    """Mean evaluation loss, if `eval_step` returns one."""
    lr: float
    """Learning rate of the last optimizer step."""
    samples: int
    """Samples trained, summed from the reports of the ranks. If a rank died, samples that other ranks trained again
    count twice, and samples that the dead rank had not reported count not at all. The model contains each sample
    once."""
    seconds: float
    """Training time in seconds, from the end of the previous epoch to the end of this one, without evaluation."""
    scalars: Scalars
    """Values given to `record_scalar`, by name: the mean over the calls of all ranks."""
    per_rank_scalars: tuple[Scalars, ...]
    """Values given to `record_scalar` in each rank, by name: the mean over the calls of that rank."""
    per_rank_throughput: tuple[float, ...]
    """Samples per second of each rank, over `seconds`. 0 if `seconds` is 0, which can happen when epochs overlap."""
    per_rank_batch_share: tuple[float, ...]
    """Each rank's fraction of all batches trained, in [0, 1]."""
    devices: tuple[str, ...]


def epoch_metrics(figures: EpochFigures, before: float, devices: tuple[str, ...]) -> EpochMetrics:
    """Return the metrics of a complete epoch. `before`: seconds of training in earlier epochs; `devices`: device of
    each rank."""
    seconds, ranks = max(figures.seconds - before, 0.0), range(len(devices))
    samples, steps = ([counts.get(rank, 0) for rank in ranks] for counts in (figures.rank_samples, figures.rank_steps))
    return EpochMetrics(
        epoch=figures.epoch,
        loss=figures.loss,
        eval=figures.eval,
        eval_loss=figures.eval_loss,
        lr=figures.lr,
        samples=figures.samples,
        seconds=seconds,
        scalars=figures.scalars,
        per_rank_scalars=tuple(figures.rank_scalars.get(rank, {}) for rank in ranks),
        per_rank_throughput=tuple(count / seconds if seconds > 0 else 0.0 for count in samples),
        per_rank_batch_share=tuple(count / max(sum(steps), 1) for count in steps),
        devices=devices,
    )
