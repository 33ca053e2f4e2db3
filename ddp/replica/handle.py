"""`WorkerHandle`: what a per-epoch callback sees of the rank that it runs in, and may change there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ddp.replica.learning_rates import Rates, Schedule


@dataclass(frozen=True, eq=False)
class WorkerHandle:
    """One rank at the start of an epoch. What is changed holds from the coming step on, in this rank alone.

    The learning rate is (the optimizer's own) x (scale of the number of ranks) x schedule(fraction of samples seen) x (what
    `scale_lr` has made); `set_lr` puts a number in place of the first three until `set_scheduler` is called.
    """

    rank: int
    """Number of this rank, from 0."""
    world_size: int
    """Number of ranks."""
    device: torch.device
    """Device of this rank."""
    epoch: int
    """The epoch that begins, from 0."""
    step: int
    """Batches that this rank has trained so far."""
    version: int
    """Averages that this rank has taken in so far, of parameters or (inside each step) of gradients."""
    model: nn.Module = field(repr=False)
    """This rank's replica. Change tensors in place: ranks share their memory."""
    _rates: Rates = field(repr=False)
    _fraction: float = field(repr=False)
    """Of all training samples that the cohort has seen when the coming step begins."""

    @property
    def lr(self) -> float:
        """The learning rate of the first parameter group in the coming step."""
        return self._rates.at(self._fraction)

    def set_lr(self, lr: float) -> None:
        """Train with this rate, whatever the schedule says. Other parameter groups keep their proportion to the first."""
        self._rates.fix(lr)

    def scale_lr(self, factor: float) -> None:
        """Multiply the rate from now on; calls multiply up. The schedule, or a rate that was set, goes on underneath."""
        self._rates.multiply(factor)

    def set_lr_scale(self, scale: float) -> None:
        """Replace the scale 1 + lr_scale_ratio * (world_size - 1)."""
        self._rates.rescale(scale)

    def set_scheduler(self, schedule: Schedule) -> None:
        """Follow another schedule: fraction of all training samples seen, in [0, 1] -> factor. Ends `set_lr`, `scale_lr`."""
        self._rates.follow(schedule)
