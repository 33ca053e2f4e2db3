"""`EpochMetrics`: what a run tells of an epoch, as soon as it is complete. `ddp.core.summary` computes the figures."""

from __future__ import annotations

from dataclasses import dataclass

from ddp.core.exact_means import Scalars
from ddp.core.summary import EpochFigures


@dataclass(frozen=True)
class EpochMetrics:
    """One epoch of all ranks. Tuples are by rank. A figure is None where it is not finite, or there is none."""

    epoch: int
    """From 0."""
    loss: float | None
    """Mean training loss over the samples of the epoch."""
    eval: float | None
    """Mean of the evaluation metric over the samples of the evaluation data."""
    eval_loss: float | None
    """Mean evaluation loss, where `eval_step` gives one."""
    lr: float
    """Learning rate of the last step."""
    samples: int
    """Samples trained, by the ranks' reports. If a rank died, samples trained again count twice and its unreported ones not;
    the model has each once."""
    seconds: float
    """Training time from the end of the epoch before to the end of this one, evaluation not counted."""
    scalars: Scalars
    """What `record_scalar` was given: mean over the calls of all ranks."""
    per_rank_scalars: tuple[Scalars, ...]
    """The same by rank."""
    per_rank_throughput: tuple[float, ...]
    """Samples of the epoch per second of it; 0 where it took no measurable time, as may be when epochs overlap."""
    per_rank_batch_share: tuple[float, ...]
    """Batches trained, as a fraction of all ranks'."""
    devices: tuple[str, ...]


def epoch_metrics(figures: EpochFigures, before: float, devices: tuple[str, ...]) -> EpochMetrics:
    """Return the metrics of a complete epoch of ranks on `devices`. `before`: seconds of training in earlier epochs."""
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
        per_rank_batch_share=tuple(count / sum(steps) for count in steps),
        devices=devices,
    )
