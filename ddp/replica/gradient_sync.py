"""Own the seam between a replica's step and what ranks do together in it. Knows nothing of how gradients travel.

A step is: `begin`, forward through `module`, backward of the loss times what `begin` gave (or several such passes),
`exchange`, `clip`, the optimizer, `end`. Each rank has its slice of the global batch.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor, nn

from ddp.core.spans import Batch
from ddp.replica.flat import FlatState


class GradientSync(Protocol):
    """One rank's part."""

    module: nn.Module
    """What the loss is computed with."""

    def begin(self, batch: Batch) -> float:
        """Clear the gradients before the forward pass of a slice; returns the factor on the loss before backward."""
        ...

    def one_pass(self, last: bool) -> AbstractContextManager[None]:
        """Surround one of several forward and backward passes of a step, whose gradients add up; all ranks have equally
        many. A step of one pass does without."""
        ...

    def idle(self, batch: Batch) -> None:
        """Take the place of forward and backward, where the slice is empty."""
        ...

    def backward(self) -> None:
        """Note that the engine's own backward pass begins: the user's loss does no more to the gradients."""
        ...

    def exchange(self, batch: Batch) -> None:
        """Make `.grad` of what the optimizer moves the global batch's mean. Raises ExchangeBroken."""
        ...

    def agree(self, finite: bool) -> bool:
        """Return whether gradients are finite on all ranks, where each has a part of them; else what this rank says."""
        ...

    def clip(self, limit: float) -> None:
        """Scale the gradients down to this L2 norm over all parameters that the optimizer moves."""
        ...

    def end(self) -> None:
        """Give `module` the new parameters, after the optimizer."""
        ...

    def undo(self) -> None:
        """Take back what a step changed before its exchange broke."""
        ...


def moved(state: FlatState, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the parameters that `optimizer` moves, in the model's order."""
    members = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return [p for _, p in state.named if id(p) in members]
