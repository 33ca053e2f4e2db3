"""Checks what a model's factory and a loss function return. Knows no engine."""

from __future__ import annotations

from collections.abc import Callable
from math import isclose, isfinite
from typing import Any

import torch
from torch import Tensor, nn

from ddp.replica.scalars import Scalars

SUMMED = (
    "the loss of a batch grows with its number of samples: it is a sum, or contains one, and ranks weigh means, so training "
    "would depend on the number of ranks and of micro-batches; return the mean of every part"
)
LEAST = 0.02
"""Growth of a loss, as a fraction of it, that is no rounding."""


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
    """Return whether the loss of the samples at given indices is a sum, whole or in part: with each of two samples twice,
    and three times, it grows by as much. Return False where the loss cannot be computed like that. Drops what the loss
    records."""
    indices = torch.arange(min(samples, 2))
    try:
        with Scalars():
            once, twice, thrice = (float(loss(indices.repeat(times)).detach()) for times in (1, 2, 3))
    except (Exception, SystemExit):  # of the user's own code: training shows it
        return False
    grown = twice - once
    return isfinite(grown) and abs(grown) > LEAST * abs(once) and isclose(thrice - twice, grown, rel_tol=1e-2)
