"""The factor on the loss that keeps small gradients from underflowing in half precision. Knows neither model nor ranks."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ddp.replica.memory.shared_gradients import local_values

FIRST, GROWTH, STEPS = 2.0**16, 2.0, 2_000
"""First factor; factor of its growth after STEPS steps without overflow, and of its shrinking after an overflow (the values
of `torch.amp.GradScaler`). Powers of two change no gradient except those that over- or underflow."""
LEAST = 1.0
"""Smallest factor: with less nothing is gained, so the step is done with the gradients as they are."""


class LossScale:
    """A dynamic loss scale, as in `torch.amp.GradScaler`."""

    def __init__(self, value: float = FIRST, steps: int = 0) -> None:
        self.value, self.steps = value, steps
        """Steps without overflow since the factor changed."""

    def unscale(self, gradients: Iterable[Tensor]) -> bool:
        """Divide gradients by the factor in place; return whether all are finite."""
        finite = True
        for gradient in gradients:
            values = local_values(gradient).mul_(1.0 / self.value)
            finite = finite and bool(torch.isfinite(values).all())
        return finite

    def follow(self, finite: bool) -> bool:
        """Update the factor for the next step; return whether to do this step."""
        done = finite or self.value <= LEAST
        self.steps = self.steps + 1 if done else 0
        if not done:
            self.value = max(self.value / GROWTH, LEAST)
        elif self.steps == STEPS:
            self.value, self.steps = self.value * GROWTH, 0
        return done
