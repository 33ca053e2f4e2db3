"""Own `RoundRobinSampler`: a rank's samples for torch's DataLoader. No sample is repeated and none left out. Reads no
data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Any

from torch.utils.data import Sampler

from ddp.data.epoch_order import order
from ddp.parallel.group import get_rank, get_world_size


class RoundRobinSampler(Sampler[int]):
    """Every `world_size`-th sample of one global order, like torch's DistributedSampler, but without repeated samples.

    The first ranks may therefore have one sample more than the others, and sometimes one batch more. `even(loader)` makes
    all ranks do the same number of steps:

        sampler = ddp.RoundRobinSampler(dataset)
        loader = torch.utils.data.DataLoader(dataset, batch_size=32, sampler=sampler)
        for epoch in range(10):
            sampler.set_epoch(epoch)
            for batch in sampler.even(loader):
                optimizer.zero_grad()
                if batch is None:  # only other ranks have a batch
                    model.sync_gradients(0)
                else:
                    model.set_samples(len(batch[0]))  # gradients are averaged over samples
                    loss(model, batch).backward()
                optimizer.step()

    Args:
        dataset: a sized dataset, or its number of samples.
        world_size, rank: default to those of `ddp.init`.
        seed: seed of the order; must be the same on all ranks.
        shuffle: use a new random order in each epoch; False: the order of the data.
        drop_last: leave out the last samples if there are too few of them for all ranks.
    """

    def __init__(
        self,
        dataset: Sized | int,
        world_size: int | None = None,
        rank: int | None = None,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        self.world_size = get_world_size() if world_size is None else world_size
        self.rank = get_rank() if rank is None else rank
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank={self.rank} is not one of the ranks 0 to {self.world_size - 1}")
        self._all = dataset if isinstance(dataset, int) else len(dataset)
        self._size = self._all - self._all % self.world_size if drop_last else self._all
        """Number of samples of all ranks together."""
        if self._size < 1:
            raise ValueError(f"{self._all} samples cannot be divided over {self.world_size} ranks: nothing is left")
        self._seed, self._shuffle, self._epoch = seed, shuffle, 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration. Call it on all ranks."""
        self._epoch = epoch

    def __len__(self) -> int:
        """Return the number of this rank's samples."""
        return -(-(self._size - self.rank) // self.world_size)

    def __iter__(self) -> Iterator[int]:
        """Yield the indices of this rank's samples in the current epoch."""
        chosen = order(self._seed, self._epoch, self._all).tolist() if self._shuffle else range(self._all)
        return iter(chosen[self.rank : self._size : self.world_size])

    def steps(self, batch_size: int) -> int:
        """Return the number of steps in an epoch: the batches of the rank that has most."""
        return len(range(0, self._size, self.world_size * batch_size))

    def even(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of `loader`, which must use this sampler, then None for each step in which only other ranks
        have a batch. Raise ValueError for any other loader."""
        batch_size = getattr(loader, "batch_size", None)
        if batch_size is None or getattr(loader, "drop_last", False) or getattr(loader, "sampler", None) is not self:
            raise ValueError(
                "even() is for a DataLoader with sampler=this sampler, a batch_size, and without drop_last"
            )
        missing = self.steps(batch_size)
        for batch in loader:
            missing -= 1
            yield batch
        yield from [None] * missing
