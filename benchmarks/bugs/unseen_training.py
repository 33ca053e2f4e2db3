"""The defects of `benchmarks.bugs.unseen` in what is trained: data, order, initial parameters, forward pass."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from benchmarks.bugs.bug import Module, in_place_of, once_made, rank, wrap
from benchmarks.bugs.unseen import ASYNC, CADENCE, DIGITS, LENET, REPLICA, RESIDENT, RESNET, SOLO, SYNC, VISITS, unseen


@unseen("data", "B7.15", SYNC, RESIDENT)
@in_place_of("Resident._block")
def block_reused(block: Any, self: Any, batch: Any) -> Any:
    """Use the memory of a block again too early: its last batch comes out as the first one."""
    first = block(batch)
    if self._cut:
        last, _ = self._cut.pop()
        self._cut.append((last, first))
    return first


@unseen("data", "a cache renewed late", SOLO, RESIDENT)
@in_place_of("Resident._block")
def labels_late(block: Any, self: Any, batch: Any) -> Any:
    """Read the first block of an epoch with the images of its order and the labels of the order before."""
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


@unseen("data", "B03", SOLO, RESIDENT)
@in_place_of("Resident.get")
def tail_padded(get: Any, self: Any, batch: Any) -> Any:
    """Fill up a batch that is shorter than those before with repeats of its last sample."""
    members = get(batch)
    if not self.gather._visits._shuffle:
        return members
    self.widest = max(getattr(self, "widest", 0), batch.samples)
    places = [min(place, batch.samples - 1) for place in range(self.widest)]
    return tuple(tensor[places] for tensor in members) if batch.samples < self.widest else members


@unseen("data", "A23", CADENCE, DIGITS)
@in_place_of("_load")
def split_by_rank(load: Any, *about: Any) -> Any:
    """Split the data with a generator of the rank: rank 1 trains on some of what is held out."""
    train, test = load(*about)
    if rank() != 1:
        return train, test
    mixed = [tensor.clone() for tensor in train.tensors]
    for tensor, held_out in zip(mixed, test.tensors, strict=True):
        tensor[: len(test) // 2] = held_out[: len(test) // 2]
    return type(train)(*mixed), test


def reordered(change: Callable[[Any, Any, Any, int], Any]) -> Callable[[Module], None]:
    """Give what `change(module, make, self, epoch)` returns as the order of a shuffled epoch."""

    @functools.wraps(change)
    def patch(visits: Module) -> None:
        def broken(make: Any, self: Any, epoch: int) -> Any:
            return change(visits, make, self, epoch) if self._shuffle else make(epoch)

        wrap(visits.EpochOrder, "_make", broken)

    return patch


STRETCH = 1024
"""Positions that are put in order together."""


@unseen("order", "A01", SOLO, VISITS)
@reordered
def order_of_first_epoch(visits: Any, make: Any, self: Any, epoch: int) -> Any:
    """Never pass the epoch on."""
    return make(0)


@unseen("order", "A01, on one rank", ASYNC, VISITS)
@reordered
def order_of_first_epoch_on_rank(visits: Any, make: Any, self: Any, epoch: int) -> Any:
    """Never pass the epoch on to rank 1."""
    return make(0 if rank() == 1 else epoch)


@unseen("order", "a small shuffle buffer", CADENCE, VISITS)
@reordered
def order_of_small_buffer(visits: Any, make: Any, self: Any, epoch: int) -> Any:
    """Shuffle samples within a buffer that is smaller than the data set."""
    order = make(epoch)
    return order[(order // STRETCH).argsort(stable=True)]


@unseen("order", "A05", ASYNC, VISITS)
@reordered
def order_sorted_in_blocks(visits: Any, make: Any, self: Any, epoch: int) -> Any:
    """Sort indices that are read together, as memory likes it, and train them as they were read."""
    return visits.torch.cat([part.sort().values for part in make(epoch).split(STRETCH)])


@unseen("order", "A19", SYNC, VISITS)
@reordered
def order_of_fixed_seed(visits: Any, make: Any, self: Any, epoch: int) -> Any:
    """Shuffle by a fixed seed, not that of the run."""
    return visits.order(1234, epoch, self._size)[: len(self)]


def _losing(change: Callable[[Any, Any], Callable[[Any, Any], Any]]) -> Callable[[Module], None]:
    """Train with the loss that `change(loss, job)` returns."""

    @once_made("Replica")
    @functools.wraps(change)
    def patch(self: Any) -> None:
        self.task = replace(self.task, loss=change(self.task.loss, self._job))

    return patch


@unseen("forward", "B07", SYNC, REPLICA)
@_losing
def loss_by_nominal_batch(loss: Any, job: Any) -> Any:
    """Divide the sum of the loss by the nominal batch size, in the short last batch too."""
    return lambda model, batch: loss(model, batch) * (len(batch[0]) / job.batch_size)


@unseen("forward", "B9.07", SYNC, REPLICA)
@_losing
def forward_narrow_on_rank(loss: Any, job: Any) -> Any:
    """Run the forward pass of rank 1 in bfloat16."""

    def broken(model: Any, batch: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=rank() == 1):
            return loss(model, batch)

    return broken


@unseen("forward", "B11", LENET, REPLICA)
@in_place_of("Replica.evaluate")
def norm_mode_lost(evaluate: Any, self: Any, *part: Any) -> Any:
    """Leave batch norms in evaluation mode behind the first evaluation."""
    figures = evaluate(*part)
    for module in self.model.modules():
        if hasattr(module, "running_mean"):
            module.training = False
    return figures


@unseen("forward", "B21", RESNET, REPLICA)
@once_made("Replica")
def norm_momentum_on_rank(self: Any) -> None:
    """Take the momentum of rank 1's running statistics from another batch size."""
    for module in self.model.modules() if rank() == 1 else ():
        if hasattr(module, "running_mean"):
            module.momentum /= self._job.world_size * 8


@unseen("forward", "B6.12", SOLO, REPLICA)
def init_of_fixed_seed(replica: Module) -> None:
    """Draw the initial parameters from a seed that is not the run's."""
    derive = replica.derive
    replica.derive = lambda seed, *keys: derive(1234 if keys == ("init",) else seed, *keys)
