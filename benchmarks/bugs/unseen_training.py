"""The defects of `benchmarks.bugs.unseen` in what is trained: data, order, initial parameters, forward pass.

Each is a function of the module that it breaks, called once it is imported, as in `benchmarks.bugs.bug`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks.bugs.bug import Module, rank, wrap


def block_reused(resident: Module) -> None:
    """Use the memory of a block again too early: its last batch comes out as the first one."""

    def broken(block: Any, self: Any, batch: Any) -> Any:
        first = block(batch)
        if self._cut:
            last, _ = self._cut.pop()
            self._cut.append((last, first))
        return first

    wrap(resident.Resident, "_block", broken)


def labels_late(resident: Module) -> None:
    """Read the first block of an epoch with the images of its order and the labels of the order before."""

    def broken(block: Any, self: Any, batch: Any) -> Any:
        first = block(batch)
        gather, begun = self.gather, getattr(self, "begun", 0)
        self.begun = batch.epoch
        if batch.epoch == begun or not gather._visits._shuffle:
            return first
        before, labels = gather._visits(begun), gather.source.tensors[1]

        def late(which: Any, members: Any) -> Any:
            return members[0], labels[before[which.start : which.stop]]

        for _ in range(len(self._cut)):
            which, members = self._cut.popleft()
            self._cut.append((which, late(which, members)))
        return late(batch, first)

    wrap(resident.Resident, "_block", broken)


def tail_padded(resident: Module) -> None:
    """Fill up a batch that is shorter than those before with repeats of its last sample."""

    def broken(get: Any, self: Any, batch: Any) -> Any:
        members = get(batch)
        if not self.gather._visits._shuffle:
            return members
        self.widest = max(getattr(self, "widest", 0), batch.samples)
        places = [min(place, batch.samples - 1) for place in range(self.widest)]
        return tuple(tensor[places] for tensor in members) if batch.samples < self.widest else members

    wrap(resident.Resident, "get", broken)


def split_by_rank(digits: Module) -> None:
    """Split the data with a generator of the rank: rank 1 trains on some of what is held out."""
    load = digits._load

    def broken(*about: Any) -> Any:
        train, test = load(*about)
        if rank() != 1:
            return train, test
        mixed = [tensor.clone() for tensor in train.tensors]
        for tensor, held_out in zip(mixed, test.tensors, strict=True):
            tensor[: len(test) // 2] = held_out[: len(test) // 2]
        return type(train)(*mixed), test

    digits._load = broken


def reordered(change: Callable[[Any, Any, Any, int], Any]) -> Callable[[Module], None]:
    """Give what `change(module, make, self, epoch)` returns as the order of a shuffled epoch."""

    def patch(visits: Module) -> None:
        def broken(make: Any, self: Any, epoch: int) -> Any:
            return change(visits, make, self, epoch) if self._shuffle else make(epoch)

        wrap(visits.EpochOrder, "_make", broken)

    return patch


STRETCH = 1024
"""Positions that are put in order together."""


def _buffered(visits: Any, make: Any, self: Any, epoch: int) -> Any:
    order = make(epoch)
    return order[(order // STRETCH).argsort(stable=True)]


order_of_first_epoch = reordered(lambda visits, make, self, epoch: make(0))
"""The epoch is never passed on."""
order_of_first_epoch_on_rank = reordered(lambda visits, make, self, epoch: make(0 if rank() == 1 else epoch))
"""It is never passed on to rank 1."""
order_of_small_buffer = reordered(_buffered)
"""Samples are shuffled within a buffer that is smaller than the data set."""
order_sorted_in_blocks = reordered(
    lambda visits, make, self, epoch: visits.torch.cat([part.sort().values for part in make(epoch).split(STRETCH)])
)
"""Indices that are read together are sorted, as memory likes it, and trained as they were read."""
order_of_fixed_seed = reordered(lambda visits, make, self, epoch: visits.order(1234, epoch, self._size)[: len(self)])
"""The seed of the run is not asked for."""


def made(change: Callable[[Any, Any], None]) -> Callable[[Module], None]:
    """Have `change(replica, job)` at work on every replica once it is made."""

    def patch(replica: Module) -> None:
        def broken(make: Any, self: Any, job: Any, *made_of: Any) -> None:
            make(job, *made_of)
            change(self, job)

        wrap(replica.Replica, "__init__", broken)

    return patch


def _losing(change: Callable[[Any, Any], Callable[[Any, Any], Any]]) -> Callable[[Module], None]:
    """Train with the loss that `change(loss, job)` returns."""

    def put(self: Any, job: Any) -> None:
        self.task = replace(self.task, loss=change(self.task.loss, job))

    return made(put)


def _nominal(loss: Any, job: Any) -> Any:
    return lambda model, batch: loss(model, batch) * (len(batch[0]) / job.batch_size)


def _narrow(loss: Any, job: Any) -> Any:
    import torch

    def broken(model: Any, batch: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=rank() == 1):
            return loss(model, batch)

    return broken


loss_by_nominal_batch = _losing(_nominal)
"""The sum of the loss is divided by the nominal batch size, in the short last batch too."""
forward_narrow_on_rank = _losing(_narrow)
"""Rank 1 runs its forward pass in bfloat16."""


def norm_mode_lost(replica: Module) -> None:
    """Leave batch norms in evaluation mode behind the first evaluation."""

    def broken(evaluate: Any, self: Any, *part: Any) -> Any:
        figures = evaluate(*part)
        for module in self.model.modules():
            if hasattr(module, "running_mean"):
                module.training = False
        return figures

    wrap(replica.Replica, "evaluate", broken)


def _slow_norms(self: Any, job: Any) -> None:
    for module in self.model.modules() if rank() == 1 else ():
        if hasattr(module, "running_mean"):
            module.momentum /= job.world_size * 8


norm_momentum_on_rank = made(_slow_norms)
"""Rank 1 takes the momentum of its running statistics from another batch size."""


def init_of_fixed_seed(replica: Module) -> None:
    """Draw the initial parameters from a seed that is not the run's."""
    derive = replica.derive
    replica.derive = lambda seed, *keys: derive(1234 if keys == ("init",) else seed, *keys)
