"""Feeds as tests make them, and what is fed."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch.utils.data import Dataset

from ddp.core.samples.spans import Batch, Chunk
from ddp.core.settings.loader import Loading
from ddp.data import TensorSource
from ddp.data.batch_loader import BatchLoader, feed
from ddp.data.epoch_order import EpochOrder

CPU = torch.device("cpu")


def make(
    source: Any, kind: str, augment: Any = None, seed: int = 5, deadline_s: float = 20.0, **more: Any
) -> BatchLoader:
    found, note = feed(source, EpochOrder(seed, len(source)), CPU, Loading(kind, **more), augment, deadline_s)
    assert note == ""
    assert found.kind == kind
    return found


def images(size: int) -> TensorSource:
    generator = torch.Generator().manual_seed(size)
    return TensorSource(torch.rand(size, 2, 4, 4, generator=generator), torch.arange(size))


def batches(size: int, batch: int, epoch: int = 0) -> list[Batch]:
    chunk = Chunk(epoch, 0, size, batch)
    return [chunk.at(step) for step in range(chunk.steps)]


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


class Samples(Dataset[Any]):
    """Samples with randomness of their own, as torchvision's transforms have it."""

    def __init__(self, size: int, bad: int = -1) -> None:
        self.size, self.bad = size, bad
        self.read: list[int] = []
        self.free = threading.Event()
        self.free.set()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        assert self.free.wait(20)
        self.read.append(index)
        if index == self.bad:
            raise OSError("the file is truncated")
        noise = torch.rand(2) + torch.randn(2) + torch.randint(3, ()) + torch.randperm(4)[0] + torch.empty(2).uniform_()
        return {"input": index + noise, "label": index}
