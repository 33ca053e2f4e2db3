"""A part of the samples to train on, `data.samples`. Knows no file."""

from __future__ import annotations

import torch

from ddp.data import TensorSource, order
from ddp.replica.task import Source


def fewer(source: Source, samples: int, name: str, seed: int | None = None) -> Source:
    """Return so many samples of a data set: its first, or as many drawn by `seed`, in their order.

    Raise ValueError, in one line, if there are fewer."""
    if not isinstance(source, TensorSource):
        raise ValueError(f"data.samples={samples}: data set {name} gives no tensors; leave it out")
    if samples > len(source):
        raise ValueError(f"data.samples={samples}: data set {name} has {len(source)} samples to train on")
    if seed is None:
        return source.only(torch.arange(samples))
    return source.only(order(seed, 0, len(source))[:samples].sort().values)
