"""Sums of a state, by which states of a model can be compared once the run is over (`ddp.core.events.Sums`).

Where replicas meet often, not of every round: of the same ones on all ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ddp.core.events import Sums
from ddp.replica.flat import Section

FIRST, THEN = 10, 20
"""Rounds of which sums are taken: so many at first, then two of every so many, one after the other: whether a replica moved
shows between them. Of a small model sums cost five times as much as laying it down."""


def due(round: int) -> bool:
    """Return whether sums are taken of this round."""
    return round < FIRST or round % THEN < 2


def sums(sections: Sequence[Section], values: Sequence[Tensor] | None = None) -> Sums:
    """Return the sums of the parameters and floating-point buffers in `sections`, or of `values` in their places."""
    tensors = [section.values for section in sections] if values is None else values
    pairs = [(section.kind, tensor) for section, tensor in zip(sections, tensors, strict=True)]
    return (*_of(t for kind, t in pairs if kind == "parameters"), *_of(t for kind, t in pairs if kind == "buffers"))


def sums_of(first: Iterable[Tensor], second: Iterable[Tensor]) -> Sums:
    """Return the sums of tensors in place of parameters, and of others in place of buffers."""
    return (*_of(first), *_of(second))


BLOCK = 1 << 15
"""Values that are converted and summed at once: they stay in the cache. A sum that converts as it goes is six times slower,
and one in single precision is as far off as what it is to show."""


def _of(tensors: Iterable[Tensor]) -> tuple[float | None, float | None]:
    total = size = 0.0
    for tensor in tensors:
        if tensor.is_floating_point():
            for block in torch.split(tensor, BLOCK if tensor.device.type == "cpu" else max(tensor.numel(), 1)):
                exact = block.double()
                total += float(exact.sum())
                size += float(exact.abs().sum())
    return (total, size) if math.isfinite(size) else (None, None)
