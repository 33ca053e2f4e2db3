"""The outer optimizer: one step from the last average along (mean of the replicas - last average). Tensor code alone.

With g = last - mean and velocity v (zero at first), learning rate lr and momentum mu:

    v <- mu v + g
    momentum (SlowMo, arXiv:1910.00643)     new = last - lr v
    nesterov (DiLoCo, arXiv:2311.08105)     new = last - lr (g + mu v)

Both are computed from the mean, new = mean - a g - b (v before), with terms of factor zero left out: lr 1 and momentum 0
give the mean, bit for bit. SlowMo divides g by the inner learning rate and multiplies the step by it; where that rate is
constant the two cancel. Where it changes, v here keeps the size of the steps that made it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ddp.core.settings.averaging import Averaging


class Outer:
    """The outer optimizer of one flat tensor of parameters; `like` gives its size, type and device."""

    def __init__(self, averaging: Averaging, like: Tensor) -> None:
        lr, self._momentum = averaging.outer_rates
        ahead = 1.0 + self._momentum if averaging.outer == "nesterov" else 1.0
        carried = self._momentum**2 if averaging.outer == "nesterov" else self._momentum
        self._fresh, self._carried = lr * ahead - 1.0, lr * carried
        self.velocity = torch.zeros_like(like, dtype=precise(like.dtype))

    def step(self, mean: Tensor, last: Tensor, piece: slice = slice(None)) -> None:
        """Turn `mean` into the new average, given the `last` one. Both hold the elements `piece` of the whole tensor."""
        velocity, kind = self.velocity[piece], self.velocity.dtype
        gradient = last.to(kind) - mean.to(kind)
        new = mean.to(kind)  # `mean` itself if the types agree
        if self._fresh:
            new.add_(gradient, alpha=-self._fresh)
        if self._carried:
            new.add_(velocity, alpha=-self._carried)
        velocity.mul_(self._momentum).add_(gradient)
        mean.copy_(new)


def outer(averaging: Averaging, like: Tensor) -> Outer | None:
    """Return an outer optimizer for a tensor of parameters, or None if the settings have none."""
    return None if averaging.outer == "none" else Outer(averaging, like)


def precise(dtype: torch.dtype) -> torch.dtype:
    """Return the type to compute in: float32 for half-precision types."""
    return torch.promote_types(dtype, torch.float32)
