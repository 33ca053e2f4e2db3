"""`sums`: what two states of a model can be held against each other by, once the run is over (`ddp.core.events.Sums`).

Cheap: of large models they are over stretches of the parameters, and where replicas meet often, not of every round. Both are
the same for all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ddp.core.events import Sums
from ddp.runtime.flat import Section

STRETCHES, LENGTH = 64, 4096
"""Of a larger tensor, so many stretches of so many values, evenly spread."""
FIRST, THEN = 100, 10
"""Rounds of which sums are taken: so many at first, then every so many."""


def due(round: int) -> bool:
    """Whether sums are taken of this round."""
    return round < FIRST or round % THEN == 0


def sums(sections: Sequence[Section], values: Sequence[Tensor] | None = None) -> Sums:
    """Of the parameters and floating-point buffers in `sections`, or of what `values` hold in their places."""
    held = [section.values for section in sections] if values is None else values
    pairs = [(section.kind, tensor) for section, tensor in zip(sections, held, strict=True)]
    return (*_of(t for kind, t in pairs if kind == "parameters"), *_of(t for kind, t in pairs if kind == "buffers"))


def sums_of(first: Iterable[Tensor], second: Iterable[Tensor]) -> Sums:
    """Of tensors in place of parameters, and of others in place of buffers."""
    return (*_of(first), *_of(second))


def _of(tensors: Iterable[Tensor]) -> tuple[float | None, float | None]:
    total = size = 0.0
    for tensor in tensors:
        if tensor.is_floating_point():
            if tensor.numel() > STRETCHES * LENGTH:
                tensor = tensor.as_strided(
                    (STRETCHES, LENGTH), (tensor.numel() // STRETCHES, 1), tensor.storage_offset()
                )
            total += float(tensor.sum(dtype=torch.float64))
            size += float(tensor.abs().sum(dtype=torch.float64))
    return (total, size) if math.isfinite(size) else (None, None)
