"""Defines `DataLoader`: the data loader for a user's own loop. The engines use the same parts (`ddp.data.batch_loader`)."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ddp.core.samples.spans import Chunk
from ddp.core.settings.loader import Loading
from ddp.data.augment import Augment
from ddp.data.batch_loader import BatchLoader, feed
from ddp.data.dataset import Collate, as_source, collated
from ddp.data.epoch_order import EpochOrder, Sampler, refuse_part
from ddp.data.source import texts


class DataLoader:
    """Yields batches of a data set. The whole data set is on the device if it fits; otherwise a thread reads ahead.

        with DataLoader((images, labels), batch_size=32, names=["image", "label"], device="cuda") as loader:
            for epoch in range(10):
                for batch in loader.epoch(epoch):
                    batch["image"]

    Args:
        dataset: as for `ddp.Trainer`: tensors of equal length, a TensorDataset, a map-style Dataset, or a source.
        batch_size: samples in one batch of one device.
        names: names of the batch's members, in order; batches are then mappings. Samples that are dicts keep their keys.
        seed: seed of the order, and of every random number of a sample.
        shuffle: use a new random order in each epoch; False: the order of the data.
        sampler: order of the samples in an epoch, instead of `seed` and `shuffle` (`ddp.data.epoch_order.Sampler`).
        drop_last: leave out samples that do not fill a batch on every rank. By default, no sample is left out.
        collate_fn: list of samples -> batch, instead of `default_collate`.
        augment: (batch, `ddp.Draws`) -> batch.
        device: device of the batches.
        rank, world_size: this process's part. All ranks have the same order, and take consecutive slices of every
            `batch_size * world_size` samples. If the last samples are too few for all ranks, batches are smaller, and a
            rank without samples gets None.
        least: fewest samples in such a smaller batch; 2 for a model with batch norm.
        loader, prefetch, vram_max_usage, memory_max_usage: `ddp.core.settings.loader.Loading`.
        deadline_s: seconds that a batch may take.

    Several threads may each iterate over an epoch of one loader. They are served in turns; only the epoch that began last
    is read ahead. Raises ValueError for invalid arguments. Iterating raises DataError (`ddp.data.errors`) with the samples
    concerned.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        batch_size: int,
        names: Sequence[str] | None = None,
        seed: int = 42,
        shuffle: bool = True,
        sampler: Sampler | None = None,
        drop_last: bool = False,
        collate_fn: Collate | None = None,
        augment: Augment | None = None,
        device: str | torch.device = "cpu",
        rank: int = 0,
        world_size: int = 1,
        least: int = 1,
        loader: str = "auto",
        prefetch: int | None = None,
        vram_max_usage: float = Loading.vram_max_usage,
        memory_max_usage: float = Loading.memory_max_usage,
        deadline_s: float = 60.0,
    ) -> None:
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"batch_size={batch_size!r} must be a whole number of 1 or more")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank={rank} is not one of the ranks 0 to {world_size - 1}")
        if not 1 <= least <= batch_size:
            raise ValueError(f"least={least} must be 1 or more and at most batch_size={batch_size}")
        if names is not None and (not names or len(set(names)) != len(names)):
            raise ValueError(f"names={list(names)} must all be different, and at least one")
        if world_size > 1:
            refuse_part(sampler)
        self._source = collated(as_source(dataset, collate_fn), collate_fn)
        self.batch_size, self._named = batch_size, names is not None
        self.names = tuple(names) if names is not None else ("input", "target")
        """Names of the members of a batch. The default names are for batches of a graph."""
        self.drop_last = drop_last
        whole = batch_size * world_size if drop_last else 1
        self._visits = EpochOrder(seed, len(self._source), sampler, whole, shuffle)
        self._augment, self._device = augment, torch.device(device)
        self._rank, self._world, self._least = rank, world_size, least
        self._loading = Loading(loader, prefetch, vram_max_usage, memory_max_usage)
        self._deadline_s, self._next = deadline_s, 0
        self._feeds: dict[tuple[torch.device, int], BatchLoader] = {}
        self._turn = threading.RLock()
        """Serialises access to the batch loaders. Reentrant: a thread may end an epoch while it holds the lock."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_turn"} | {"_feeds": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _turn=threading.RLock())

    def __len__(self) -> int:
        return len(self._visits)

    @property
    def steps(self) -> int:
        """Return the number of batches of an epoch."""
        return self._chunk(0).steps

    @property
    def kind(self) -> str:
        """Return `resident` or `streaming`."""
        return self.feed(self._device).kind

    def order(self, epoch: int) -> Tensor:
        """Return the indices of an epoch's samples in order, int64."""
        return self._visits(epoch)

    def _chunk(self, epoch: int) -> Chunk:
        return Chunk(epoch, 0, len(self), self.batch_size * self._world, self._rank, self._world, least=self._least)

    def epoch(self, number: int) -> Iterator[Any]:
        """Yield the batches of epoch `number` as the data set gives them, or as mappings if there are names."""
        chunk = self._chunk(number)
        with self._turn:
            source = self.feed(self._device)
            source.expect(map(chunk.at, range(chunk.steps)))
        try:
            for batch in map(chunk.at, range(chunk.steps)):
                with self._turn:
                    got = source.get(batch) if batch.samples else None
                yield self._with_names(got) if batch.samples else None
        finally:
            # If an epoch is left early, stop reading it. Any thread may close this generator, even the reading one.
            if self._turn.acquire(blocking=False):
                try:
                    source.expect(())
                finally:
                    self._turn.release()

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the next epoch, counted from 0 or from `set_epoch`."""
        number, self._next = self._next, self._next + 1
        return self.epoch(number)

    def set_epoch(self, number: int) -> None:
        """Set the epoch of the next iteration."""
        self._next = number

    def _with_names(self, batch: Any) -> Any:
        if not self._named or isinstance(batch, Mapping):
            return batch
        members = batch if isinstance(batch, tuple) and not texts(batch) else (batch,)
        if len(members) != len(self.names):
            raise ValueError(f"names={list(self.names)} for batches of {len(members)} members; give one for each")
        return dict(zip(self.names, members, strict=True))

    def feed(self, device: torch.device, replica: int = 0) -> BatchLoader:
        """Return the batch loader for `device` and one of its replicas. It gives batches by position, without names."""
        if (device, replica) not in self._feeds:
            loader, note = feed(self._source, self._visits, device, self._loading, self._augment, self._deadline_s)
            if note:
                warnings.warn(note, stacklevel=2)
            self._feeds[device, replica] = loader
        return self._feeds[device, replica]

    def close(self) -> None:
        """Stop background threads and release the data. The loader can be used again."""
        for loader in self._feeds.values():
            loader.close()
        self._feeds.clear()

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
