"""Own `RoundRobinSampler`: a rank's samples for torch's DataLoader. None twice, none left out. Reads no data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Any

from torch.utils.data import Sampler

from ddp.data.epoch_order import order
from ddp.parallel.group import get_rank, get_world_size


class RoundRobinSampler(Sampler[int]):
    """Every `world_size`-th sample of one order for all ranks: as torch's DistributedSampler, but no sample comes twice.

    So the first ranks may have one sample more than the others, and in rare cases one batch more. `even(loader)` makes the
    ranks do the same number of steps:

        sampler = ddp.RoundRobinSampler(dataset)
        loader = torch.utils.data.DataLoader(dataset, batch_size=32, sampler=sampler)
        for epoch in range(10):
            sampler.set_epoch(epoch)
            for batch in sampler.even(loader):
                optimizer.zero_grad()
                if batch is None:  # others have one
                    model.sync_gradients(0)
                else:
                    model.set_samples(len(batch[0]))  # the average is then one over samples
                    loss(model, batch).backward()
                optimizer.step()

    Args:
        dataset: what has the length; or the number of samples.
        world_size, rank: those of `ddp.init` if not given.
        seed: of the order, the same on all ranks.
        shuffle: another order in each epoch; else that of the data.
        drop_last: leave out what is too little for all ranks.
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
        """Samples of all ranks."""
        if self._size < 1:
            raise ValueError(f"{self._all} samples cannot be divided over {self.world_size} ranks: nothing is left")
        self._seed, self._shuffle, self._epoch = seed, shuffle, 0

    def set_epoch(self, epoch: int) -> None:
        """Set which epoch the next iteration is, on all ranks."""
        self._epoch = epoch

    def __len__(self) -> int:
        """Return the samples of this rank."""
        return -(-(self._size - self.rank) // self.world_size)

    def __iter__(self) -> Iterator[int]:
        """Yield the indices of this rank's samples of the epoch."""
        chosen = order(self._seed, self._epoch, self._all).tolist() if self._shuffle else range(self._all)
        return iter(chosen[self.rank : self._size : self.world_size])

    def steps(self, batch_size: int) -> int:
        """Return the batches of the rank that has most: the steps of all."""
        return len(range(0, self._size, self.world_size * batch_size))

    def even(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of `loader`, which has this sampler, and None for a step in which only others have one."""
        batch_size = getattr(loader, "batch_size", None)
        if batch_size is None or getattr(loader, "drop_last", False):
            raise ValueError("even() is for a DataLoader with a batch_size and without drop_last")
        missing = self.steps(batch_size)
        for batch in loader:
            missing -= 1
            yield batch
        yield from [None] * missing
