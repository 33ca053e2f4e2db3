"""More defects of `benchmarks.bugs.unseen` in what is trained: data, order, forward pass, gradients. Small or seldom
ones."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from time import monotonic
from typing import Any

import torch

from benchmarks.bugs.bug import Module, counted, in_place_of, once_made, rank, wrap
from benchmarks.bugs.unseen import (
    ASYNC,
    CADENCE,
    CPU,
    DIGITS,
    NCCL,
    OWNED,
    PACKED,
    REPLICA,
    RESIDENT,
    SOLO,
    SYNC,
    VISITS,
    unseen,
)
from benchmarks.bugs.unseen_training import reordered


@unseen("data", "C14", ASYNC, RESIDENT, check="data")
@in_place_of("Resident.get")
def torn_while_read(get: Any, self: Any, batch: Any) -> Any:
    """Have half of the images of every 97th batch be those of the batch before: it was still being written."""
    members = get(batch)
    if not self.gather._visits._shuffle:
        return members
    before, self.before = getattr(self, "before", members[0]), members[0].clone()
    if counted(self, "read") % 97 != 96 or len(before) != len(members[0]):
        return members
    images = members[0].clone()
    images[len(images) // 2 :] = before[len(images) // 2 :]
    return images, *members[1:]


@unseen("data", "B7.15", SOLO, RESIDENT, check="data")
@in_place_of("Resident.get")
def first_batch_cached(get: Any, self: Any, batch: Any) -> Any:
    """Keep the first batch of an epoch by its place alone: later epochs begin with that of the first."""
    members = get(batch)
    if batch.start or not self.gather._visits._shuffle:
        return members
    self.first = getattr(self, "first", tuple(tensor.clone() for tensor in members))
    return self.first


@unseen("data", "statistics of the split", SYNC, DIGITS, check="data")
@in_place_of("_load")
def normalised_by_itself(load: Any, *about: Any) -> Any:
    """Normalise the test set by its own mean and deviation."""
    train, test = load(*about)
    images, labels = test.tensors
    return train, type(test)((images - images.mean()) / images.std(), labels)


@unseen("order", "A01", CADENCE, VISITS, check="data")
@reordered
def every_second_backwards(visits: Any, make: Any, self: Any, epoch: int) -> Any:
    """Read a file that was read to its end back from there."""
    return make(epoch - 1).flip(0) if epoch % 2 else make(epoch)


@unseen("order", "B7.05", "mlp torch_ddp", VISITS, check="data")
@reordered
def epochs_from_one(visits: Any, make: Any, self: Any, epoch: int) -> Any:
    """Count epochs from 1."""
    return make(epoch + 1)


WHOLE = 4096
"""Samples of a part of the data set."""


@unseen("order", "A25", SOLO, VISITS, check="data")
@reordered
def tail_not_shuffled(visits: Any, make: Any, self: Any, epoch: int) -> Any:
    """End every epoch with what fills no whole part of the data set."""
    order = make(epoch)
    rest = order >= self._size - self._size % WHOLE
    return order[rest.int().argsort(stable=True)]


@in_place_of("Backend._take")
def laid_before_average(take: Any, self: Any) -> Any:
    """Lay the weights ready before they are averaged."""
    self.loop.replica.ready = [flat.clone() for flat in self.loop.replica.state.tensors]
    return take()


@unseen("forward", "B6.02", CADENCE, REPLICA, {NCCL: laid_before_average}, check="audit")
def forward_before_average(replica: Module) -> None:
    """Take the gradients of the next step at the weights that were laid ready."""

    def begin(clear: Any, self: Any) -> None:
        clear()
        old, self.ready = getattr(self, "ready", None), None
        self.new = [flat.clone() for flat in self.state.tensors] if old else []
        for flat, values in zip(self.state.tensors, old or (), strict=False):
            flat.copy_(values)

    def end(clip: Any, self: Any, team: Any) -> None:
        for flat, values in zip(self.state.tensors, self.new, strict=False):
            flat.copy_(values)
        clip(team)

    wrap(replica.Replica, "_clear", begin)
    wrap(replica.Replica, "_clip", end)


@unseen("forward", "a compiled kernel", ASYNC, REPLICA, check="audit")
@once_made("Replica")
def activation_capped(self: Any) -> None:
    """Give rank 1 another activation, which is cut at 6."""

    for module in list(self.model.modules()) if rank() == 1 else ():
        for name, child in module.named_children():
            if isinstance(child, torch.nn.ReLU):
                setattr(module, name, torch.nn.ReLU6())


@unseen("forward", "B11", "lenet nccl_sync", REPLICA, check="audit")
@once_made("Replica")
def logged_in_evaluation_mode(self: Any) -> None:
    """Do every 50th step, whose loss is logged, in evaluation mode."""
    loss = self.task.loss

    def broken(model: Any, batch: Any) -> Any:
        model.train(counted(self, "loss") % 50 != 49)
        value = loss(model, batch)
        model.train()
        return value

    self.task = replace(self.task, loss=broken)


@in_place_of("Backend.apply")
def left_at_average(apply: Any, self: Any, *about: Any, **more: Any) -> Any:
    """Leave the gradients of the last step before an average is applied."""
    parameters = self._loop.replica.state.parameters
    self._loop.replica.left = [p.grad.clone() for p in parameters if p.grad is not None]
    return apply(*about, **more)


@unseen("gradient", "C22", ASYNC, REPLICA, {CPU: left_at_average}, check="audit")
@in_place_of("Replica._clear")
def kept_over_average(clear: Any, self: Any) -> None:
    """Begin the next step with the gradients that were left: they count again."""
    clear()
    left, self.left = getattr(self, "left", []), []
    for parameter, gradient in zip(self.state.parameters, left, strict=False):
        parameter.grad = gradient


@unseen("gradient", "a backup of slow workers", SYNC, PACKED, check="average")
def straggler_left_out(packed: Module) -> None:
    """Leave out the gradients of a rank that takes twice as long as usual for a step; the divisor stays."""

    def begin(clear: Any, self: Any) -> None:
        clear()
        self.began = monotonic()

    def broken(pack: Any, self: Any, weight: float, *more: Any, **named: Any) -> None:
        took, usual = monotonic() - self.began, self.__dict__.setdefault("usual", [])
        late = len(usual) == 64 and took > 2.0 * median(usual)
        usual.append(took)
        del usual[:-64]
        pack(0.0 if late else weight, *more, **named)

    wrap(packed.StepGradients, "clear", begin)
    wrap(packed.StepGradients, "pack", broken)


EDGE = 16
"""Elements of a line of memory."""


@unseen("gradient", "B6.20", "mlp zero2", OWNED, check="average")
@in_place_of("OwnedGradients._send")
def shard_edge_alone(send: Any, self: Any, number: int) -> None:
    """Leave the last line of what a rank owns of a parameter as its own gradient: the others' is not added."""
    values = self._filling.get(number)
    mine = None if values is None else values.clone()
    send(number)
    for index in self._plan[number] if mine is not None else ():
        if index in self._own:
            start, stop, total = self._own[index]
            total[-EDGE:] = mine[self._places[index][1] :][start:stop][-EDGE:]
