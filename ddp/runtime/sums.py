"""`sums`: what states of a model can be held against each other by, once the run is over (`ddp.core.events.Sums`).

Where replicas meet often, not of every round: of the same ones on all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ddp.core.events import Sums
from ddp.runtime.flat import Section

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


BLOCK = 1 << 16
"""Values that are summed in their own precision on a CPU before sums are added up in double: converting every value takes
eight times as long as all of this, and blocks stay in the cache."""


def _of(tensors: Iterable[Tensor]) -> tuple[float | None, float | None]:
    total = size = 0.0
    for tensor in tensors:
        if not tensor.is_floating_point():
            continue
        on_cpu = tensor.device.type == "cpu"
        kind = torch.promote_types(tensor.dtype, torch.float32) if on_cpu else torch.float64
        for block in torch.split(tensor, BLOCK) if on_cpu else (tensor,):
            total += float(block.sum(dtype=kind))
            size += float(block.abs().sum(dtype=kind))
    return (total, size) if math.isfinite(size) else (None, None)
