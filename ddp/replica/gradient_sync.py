"""The interface between a replica's step and what ranks do together in it. Does not know how gradients are exchanged.

One step calls `begin`; a forward pass through `module`; backward of the loss times the factor that `begin` returned (or
several such passes); `exchange`; `clip`; the optimizer's step; `end`. Each rank trains its slice of the global batch."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor, nn

from ddp.core.samples.spans import Batch
from ddp.replica.memory.flat import FlatState


class GradientSync(Protocol):
    """One rank's part in the gradient exchange of each step."""

    module: nn.Module
    """The module to compute the loss with."""

    def begin(self, batch: Batch) -> float:
        """Clear the gradients before the forward pass on a slice; return the factor to multiply the loss by."""
        ...

    def one_pass(self, last: bool) -> AbstractContextManager[None]:
        """Return the context for one of several forward and backward passes whose gradients add up. All ranks do equally
        many. A step of a single pass does not use it."""
        ...

    def idle(self, batch: Batch) -> None:
        """Replace the forward and backward pass on a rank whose slice of the batch is empty."""
        ...

    def backward(self) -> None:
        """Signal that the backward pass begins: from here on, the user's loss function no longer touches gradients."""
        ...

    def exchange(self, batch: Batch) -> None:
        """Turn `.grad` of the optimizer's parameters into the mean over the global batch. Raises ExchangeBroken."""
        ...

    def agree(self, finite: bool) -> bool:
        """Return whether gradients are finite on all ranks if each rank holds a part of them; else return `finite`."""
        ...

    def clip(self, limit: float) -> None:
        """Scale the gradients down to the L2 norm `limit`, taken over all parameters of the optimizer."""
        ...

    def end(self) -> None:
        """Make the updated parameters available in `module`, after the optimizer's step."""
        ...

    def undo(self) -> None:
        """Undo the step's changes after its exchange broke."""
        ...


def moved(state: FlatState, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the parameters that `optimizer` updates, in the model's order."""
    members = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return [p for _, p in state.named if id(p) in members]
