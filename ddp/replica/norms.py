"""Tells which models compute statistics over the batch that they are trained on."""

from __future__ import annotations

from torch import nn


def least_samples(model: nn.Module) -> int:
    """Return the fewest samples in a batch that `model` should be trained on: two with torch's batch norm, which refuses a
    single row and estimates little from a single image; else one."""
    return 2 if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules()) else 1
