"""What is granted, as batches to come, and what of it was prepared already. Shared by both kinds of feed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TypeVar

from ddp.core.spans import Batch

T = TypeVar("T")


def same(one: Batch, other: Batch) -> bool:
    """Whether they are the same samples of the same epoch."""
    return one.start == other.start and one.stop == other.stop and one.epoch == other.epoch


def kept(
    prepared: Iterable[tuple[Batch, T]], granted: Iterable[Batch]
) -> tuple[Iterator[Batch], deque[tuple[Batch, T]]]:
    """What of `granted` is still to be prepared, and what of `prepared` comes next, in order; the rest was taken back.
    Batches without samples are left out."""
    coming: Iterator[Batch] = (batch for batch in granted if batch.samples)
    still: deque[tuple[Batch, T]] = deque()
    for batch, value in prepared:
        expected = next(coming, None)
        if expected is None or not same(batch, expected):
            return (coming if expected is None else chain((expected,), coming)), still
        still.append((batch, value))
    return coming, still
