"""`DataLoader`: the loader by itself, for a user's own loop. The engines use the same parts (`ddp.data.batch_loader`)."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ddp.core.loader_settings import Loading
from ddp.core.spans import Chunk
from ddp.data.augment import Augment
from ddp.data.batch_loader import BatchLoader, feed
from ddp.data.dataset import Collate, as_source, collated
from ddp.data.epoch_order import EpochOrder, Sampler, refuse_part
from ddp.data.source import texts


class DataLoader:
    """Batches of a data set: on the device as a whole where it fits, else read ahead by a thread.

        with DataLoader((images, labels), batch_size=32, names=["image", "label"], device="cuda") as loader:
            for epoch in range(10):
                for batch in loader.epoch(epoch):
                    batch["image"]

    Args:
        dataset: as for `ddp.Trainer`: tensors of equal length, a TensorDataset, a map-style Dataset, or a source.
        batch_size: samples of one batch of one device.
        names: of the members of a batch, in order: batches are mappings then. Of samples that are dictionaries, their keys.
        seed: of the order, and of every random number of a sample.
        shuffle: another order in each epoch; else that of the data.
        sampler: the samples of an epoch in their order, in place of both (`ddp.data.epoch_order.Sampler`).
        drop_last: leave out samples that make no whole batch on every rank; by default every sample is there.
        collate_fn: list of samples -> batch, in place of `default_collate`.
        augment: (batch, `ddp.Draws`) -> batch.
        device: where batches come to.
        rank, world_size: this process's part: all ranks have one order, and of every `batch_size * world_size` samples in it
            consecutive slices. Where the last samples are too few for all ranks, batches are smaller, and None if there is
            none.
        least: fewest samples of such a slice; for a model with batch norm, which cannot do with one, 2.
        loader, prefetch, vram_max_usage, memory_max_usage: `ddp.core.loader_settings.Loading`.
        deadline_s: how long a batch may take to be there.

    Several threads may each take an epoch of one loader; they are served in turns, and what is read ahead is the last one's
    that began.

    Raises ValueError for what cannot be. Iterating raises DataError (`ddp.data.errors`) with the samples that it is about.
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
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size} must be 1 or more")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank={rank} is not one of the ranks 0 to {world_size - 1}")
        if not 1 <= least <= batch_size:
            raise ValueError(f"least={least} must be 1 or more and at most batch_size={batch_size}")
        if names is not None and (not names or len(set(names)) != len(names)):
            raise ValueError(f"names={list(names)} must all be different, and at least one")
        if world_size > 1:
            refuse_part(sampler)
        self._source = collated(as_source(dataset), collate_fn)
        self.batch_size, self._named = batch_size, names is not None
        self.names = tuple(names) if names is not None else ("input", "target")
        """Of the members of a batch; those of a graph's batches where none were given."""
        self.drop_last = drop_last
        whole = batch_size * world_size if drop_last else 1
        self._visits = EpochOrder(seed, len(self._source), sampler, whole, shuffle)
        self._augment, self._device = augment, torch.device(device)
        self._rank, self._world, self._least = rank, world_size, least
        self._loading = Loading(loader, prefetch, vram_max_usage, memory_max_usage)
        self._deadline_s, self._next = deadline_s, 0
        self._feeds: dict[tuple[torch.device, int], BatchLoader] = {}
        self._turn = threading.RLock()
        """Of who asks a feed, which knows one who asks; a thread may ask for the end of an epoch inside its own turn."""

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
        """Return the indices of the samples of an epoch, in their order, int64."""
        return self._visits(epoch)

    def _chunk(self, epoch: int) -> Chunk:
        return Chunk(epoch, 0, len(self), self.batch_size * self._world, self._rank, self._world, least=self._least)

    def epoch(self, number: int) -> Iterator[Any]:
        """Yield the batches of an epoch: what the data set gives, put together, or mappings where there are names."""
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
            # Of an epoch that is left early nothing more is read. It may be let go of by any thread, the reading one too.
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
        """Set which epoch the next iteration is."""
        self._next = number

    def _with_names(self, batch: Any) -> Any:
        if not self._named or isinstance(batch, Mapping):
            return batch
        members = batch if isinstance(batch, tuple) and not texts(batch) else (batch,)
        if len(members) != len(self.names):
            raise ValueError(f"names={list(self.names)} for batches of {len(members)} members; give one for each")
        return dict(zip(self.names, members, strict=True))

    def feed(self, device: torch.device, replica: int = 0) -> BatchLoader:
        """Return what gives batches to `device`, for one replica there: by positions, without names."""
        if (device, replica) not in self._feeds:
            loader, note = feed(self._source, self._visits, device, self._loading, self._augment, self._deadline_s)
            if note:
                warnings.warn(note, stacklevel=2)
            self._feeds[device, replica] = loader
        return self._feeds[device, replica]

    def close(self) -> None:
        """End what runs in the background. A loader that is asked again begins anew."""
        for loader in self._feeds.values():
            loader.close()
        self._feeds.clear()

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
