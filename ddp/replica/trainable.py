"""Checks what a model's factory returns. Knows no engine."""

from __future__ import annotations

from typing import Any

from torch import nn


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
