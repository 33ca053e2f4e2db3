"""Yields an epoch of a loader as batches of a graph: for one device, or divided over the replicas.

Owns the division of an epoch into batches. Must not know how they are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from ddp.core.samples.spans import Batch, Chunk, Span
from ddp.data.batch_loader import BatchLoader
from ddp.graph.errors import GraphError
from ddp.graph.loader import DataLoader, GraphBatch
from ddp.graph.replicas import GraphReplicas


def alone(loader: DataLoader, place: torch.device, number: int) -> Iterator[GraphBatch]:
    """Yield the batches of epoch `number` (from 0) for one device."""
    feed, chunk = loader.feed(place), Chunk(number, 0, len(loader), loader.batch_size)
    feed.expect(map(chunk.at, range(chunk.steps)))
    for part in map(chunk.at, range(chunk.steps)):
        yield GraphBatch(loader.names, ((feed.get(part),),), ((part.samples,),), place)


def shared(loader: DataLoader, replicas: GraphReplicas, number: int) -> Iterator[GraphBatch]:
    """Yield the batches or windows of epoch `number` (from 0). Each is divided over the replicas when it is due. Raises
    GraphError if `drop_last` leaves no batch."""
    position, size = 0, _whole(loader, len(replicas.devices), replicas.windows.windowed)
    feeds = [loader.feed(device, replica) for replica, device in enumerate(replicas.devices)]
    while position < size:
        work = replicas.windows.work(position, size)
        fetch = [partial(_fetch, feed, number, spans) for feed, spans in zip(feeds, work, strict=True)]
        sizes = tuple(tuple(b - a for a, b in spans) for spans in work)
        yield GraphBatch(loader.names, tuple(replicas.workers.everywhere("data", fetch)), sizes, replicas.devices[0])
        position += sum(map(sum, sizes))


def _whole(loader: DataLoader, replicas: int, windowed: bool) -> int:
    """Return the samples of an epoch to train. With `drop_last` these are whole batches of all replicas, except in windows,
    where each batch belongs to one replica."""
    size, batch = len(loader), loader.batch_size * replicas
    if windowed or not loader.drop_last:
        return size
    if size < batch:
        raise GraphError(
            f"{size} samples make no batch of {batch} for {replicas} replicas: nothing is left with drop_last"
        )
    return size - size % batch


def _fetch(feed: BatchLoader, epoch: int, spans: Sequence[Span]) -> tuple[Any, ...]:
    """Return the batches that a replica trains in a window."""
    parts = [Batch(epoch, start, stop, stop - start) for start, stop in spans]
    feed.expect(parts)
    return tuple(map(feed.get, parts))
