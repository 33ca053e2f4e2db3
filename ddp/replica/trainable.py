"""Checks what a model's factory and a loss function return. Knows no engine."""

from __future__ import annotations

from collections.abc import Callable
from math import isclose
from typing import Any

import torch
from torch import Tensor, nn

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
    """Return whether `loss` (indices of samples -> loss) is a sum, not a mean: it doubles if each sample is given twice."""
    indices = torch.arange(min(samples, 2))
    once, twice = (float(loss(each).detach()) for each in (indices, indices.repeat(2)))
    return once != 0.0 and isclose(twice, 2 * once, rel_tol=1e-3)
