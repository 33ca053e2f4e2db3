"""`WorkerHandle`: lets an epoch callback read the state of its rank, and change the learning rate and model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ddp.replica.optim.learning_rates import Rates, Schedule


@dataclass(frozen=True, eq=False)
class WorkerHandle:
    """One rank at the start of an epoch. Changes take effect with the next step, on this rank alone.

    Learning rate = (the optimizer's own) x (scale for the number of ranks) x schedule(fraction of samples seen) x (product
    of `scale_lr` calls). `set_lr` replaces the first three factors by a number until `set_scheduler` is called."""

    rank: int
    """Index of this rank, from 0."""
    world_size: int
    """Number of ranks."""
    device: torch.device
    """Device of this rank."""
    epoch: int
    """The epoch that begins, from 0."""
    step: int
    """Batches that this rank has trained so far."""
    version: int
    """Averages that this rank has taken part in so far: of parameters, or of gradients (one per step)."""
    model: nn.Module = field(repr=False)
    """This rank's replica. Change tensors in place: ranks share their memory."""
    _rates: Rates = field(repr=False)
    _fraction: float = field(repr=False)
    """Fraction of all training samples that the ranks have seen together when the next step begins."""

    @property
    def lr(self) -> float:
        """The learning rate of the first parameter group in the next step."""
        return self._rates.at(self._fraction)

    def set_lr(self, lr: float) -> None:
        """Train with this rate instead of the scheduled one. Other parameter groups keep their ratio to the first."""
        self._rates.fix(lr)

    def scale_lr(self, factor: float) -> None:
        """Multiply the rate from now on, on top of the schedule or of a rate that was set. Repeated calls multiply."""
        self._rates.multiply(factor)

    def set_lr_scale(self, scale: float) -> None:
        """Replace the scale 1 + lr_scale_ratio * (world_size - 1)."""
        self._rates.rescale(scale)

    def set_scheduler(self, schedule: Schedule) -> None:
        """Follow another schedule: fraction of all training samples seen, in [0, 1] -> factor. Ends `set_lr`, `scale_lr`."""
        self._rates.follow(schedule)
