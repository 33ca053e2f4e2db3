"""Own the factor on the loss with which small gradients do not vanish in half precision. Knows neither model nor ranks."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

FIRST, GROWTH, STEPS = 2.0**16, 2.0, 2_000
"""The first factor; by how much it grows after so many steps without overflow, and shrinks after one with it (the values of
torch.amp.GradScaler). Powers of two, so that it changes no gradient but those that over- or underflow."""
LEAST = 1.0
"""Below it nothing is gained: a step is done with what gradients there are, as without a factor."""


class LossScale:
    """The factor, which follows what steps show."""

    def __init__(self, value: float = FIRST, steps: int = 0) -> None:
        self.value, self.steps = value, steps
        """Steps without overflow since it changed."""

    def unscale(self, gradients: Iterable[Tensor]) -> bool:
        """Divide gradients by the factor, in place; return whether all are finite."""
        finite = True
        for gradient in gradients:
            values = gradient._values() if gradient.is_sparse else gradient
            local: Tensor = values.to_local() if hasattr(values, "to_local") else values
            local.mul_(1.0 / self.value)
            finite = finite and bool(torch.isfinite(local).all())
        return finite

    def follow(self, finite: bool) -> bool:
        """Set the factor of the next step; return whether this one is to be done."""
        done = finite or self.value <= LEAST
        self.steps = self.steps + 1 if done else 0
        if not done:
            self.value = max(self.value / GROWTH, LEAST)
        elif self.steps == STEPS:
            self.value, self.steps = self.value * GROWTH, 0
        return done
