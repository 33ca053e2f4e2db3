"""`WorkerHandle`: what a per-epoch callback sees of the rank that it runs in, and may change there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddp.runtime.rates import Schedule

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ddp.runtime.loop import TrainingLoop


class WorkerHandle:
    """One rank at the start of an epoch. What is changed holds from the coming step on, in this rank alone.

    The learning rate is (the optimizer's own) x (scale of the number of ranks) x schedule(fraction of samples seen) x (what
    `scale_lr` has made); `set_lr` puts a number in place of the first three until `set_scheduler` is called.
    """

    def __init__(self, loop: TrainingLoop, epoch: int, seen: float) -> None:
        self._loop, self._epoch, self._seen = loop, epoch, seen

    @property
    def rank(self) -> int:
        """Number of this rank, from 0."""
        return self._loop.rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._loop.job.world_size

    @property
    def device(self) -> torch.device:
        """Device of this rank."""
        return self._loop.device

    @property
    def epoch(self) -> int:
        """The epoch that begins, from 0."""
        return self._epoch

    @property
    def step(self) -> int:
        """Batches that this rank has trained so far."""
        return self._loop.total_steps

    @property
    def version(self) -> int:
        """Averages that this rank has taken in so far, of parameters or (inside each step) of gradients."""
        return self._loop.version

    @property
    def lr(self) -> float:
        """Learning rate of the first parameter group in the coming step."""
        replica = self._loop.replica
        return replica.rates.at(replica.fraction(self._seen))

    @property
    def model(self) -> nn.Module:
        """This rank's replica. Change tensors in place: ranks share their memory."""
        return self._loop.replica.model

    def set_lr(self, lr: float) -> None:
        """Train with this rate, whatever the schedule says. Other parameter groups keep their proportion to the first."""
        self._loop.replica.rates.fix(lr)

    def scale_lr(self, factor: float) -> None:
        """Multiply the rate from now on; calls multiply up. The schedule, or a rate that was set, goes on underneath."""
        self._loop.replica.rates.multiply(factor)

    def set_lr_scale(self, scale: float) -> None:
        """Replace the scale 1 + lr_scale_ratio * (world_size - 1)."""
        self._loop.replica.rates.rescale(scale)

    def set_scheduler(self, schedule: Schedule) -> None:
        """Follow another schedule: fraction of all training samples seen, in [0, 1] -> factor. Ends `set_lr`, `scale_lr`."""
        self._loop.replica.rates.follow(schedule)
