"""Checks what a model's factory and a loss function return. Knows no engine."""

from __future__ import annotations

from collections.abc import Callable
from math import isclose, isfinite
from typing import Any

import torch
from torch import Tensor, nn

from ddp.replica.scalars import Scalars

SUMMED = (
    "the loss of a batch is twice that of half as many samples, a sum, and ranks weigh means: training would depend on the "
    "number of ranks and of micro-batches; return the mean"
)


def trainable(made: Any) -> nn.Module:
    """Return the model that the factory returned. Raises ValueError unless it is an `nn.Module` in training mode."""
    if not isinstance(made, nn.Module):
        raise ValueError(f"the model's factory must return a torch.nn.Module, not {made!r:.60}")
    if not made.training:
        raise ValueError(
            f"the factory of {type(made).__name__} returns it in evaluation mode, as from_pretrained does, so dropout and "
            "batch norm would not train: call model.train() in the factory, then .eval() of the parts that are to stay so"
        )
    return made


def is_sum(loss: Callable[[Tensor], Tensor], samples: int) -> bool:
    """Return whether the loss of the samples at given indices is a sum: with each of two samples twice, it is twice as
    large, and three times with each three times. Return False where the loss cannot be computed like that. Drops what
    the loss records."""
    indices = torch.arange(min(samples, 2))
    try:
        with Scalars():
            once, *more = (float(loss(indices.repeat(times)).detach()) for times in (1, 2, 3))
    except (Exception, SystemExit):  # of the user's own code: training shows it
        return False
    multiples = (isclose(each, times * once, rel_tol=1e-3) for times, each in enumerate(more, 2))
    return once != 0.0 and isfinite(once) and all(multiples)
