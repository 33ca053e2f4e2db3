"""An epoch of a loader as the batches of a graph: on one device, or a part of each for every replica.

Owns how an epoch falls into batches. Must not know what is done with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from ddp.core.spans import Batch, Chunk, Span
from ddp.data.batch_loader import BatchLoader
from ddp.graph.errors import GraphError
from ddp.graph.loader import DataLoader, GraphBatch
from ddp.graph.replicas import GraphReplicas


def alone(loader: DataLoader, place: torch.device, number: int) -> Iterator[GraphBatch]:
    """Yield epoch `number` (from 0) as one device at `place` trains it."""
    feed, chunk = loader.feed(place), Chunk(number, 0, len(loader), loader.batch_size)
    feed.expect(map(chunk.at, range(chunk.steps)))
    for part in map(chunk.at, range(chunk.steps)):
        yield GraphBatch(loader.names, ((feed.get(part),),), ((part.samples,),), place)


def shared(loader: DataLoader, replicas: GraphReplicas, number: int) -> Iterator[GraphBatch]:
    """Yield epoch `number` (from 0), each batch or window cut for the replicas when it is its turn. Raises GraphError where
    `drop_last` leaves nothing."""
    position, size = 0, _whole(loader, len(replicas.devices), replicas.windows.windowed)
    feeds = [loader.feed(device, replica) for replica, device in enumerate(replicas.devices)]
    while position < size:
        work = replicas.windows.work(position, size)
        fetch = [partial(_fetch, feed, number, spans) for feed, spans in zip(feeds, work, strict=True)]
        sizes = tuple(tuple(b - a for a, b in spans) for spans in work)
        yield GraphBatch(loader.names, tuple(replicas.workers.everywhere("data", fetch)), sizes, replicas.devices[0])
        position += sum(map(sum, sizes))


def _whole(loader: DataLoader, replicas: int, windowed: bool) -> int:
    """Return the samples of an epoch: with `drop_last`, whole batches of all replicas. A window has batches of one."""
    size, batch = len(loader), loader.batch_size * replicas
    if windowed or not loader.drop_last:
        return size
    if size < batch:
        raise GraphError(
            f"{size} samples make no batch of {batch} for {replicas} replicas: nothing is left with drop_last"
        )
    return size - size % batch


def _fetch(feed: BatchLoader, epoch: int, spans: Sequence[Span]) -> tuple[Any, ...]:
    """Return what a replica trains of a window."""
    parts = [Batch(epoch, start, stop, stop - start) for start, stop in spans]
    feed.expect(parts)
    return tuple(map(feed.get, parts))
