"""The last defects of `benchmarks.bugs.unseen` in what is trained: data, order, forward pass, gradients. Small or seldom, in
models, modes and settings of their own.
"""

from __future__ import annotations

from typing import Any

from benchmarks.bugs.bug import Module, in_place_of, rank, wrap
from benchmarks.bugs.unseen import GATHER, HALF, LANGUAGE, OWNED, PACKED, PASSES, REPLICA, VISITS, unseen
from benchmarks.bugs.unseen_training import reordered

STOPPED, LAST = 2, 3
"""Epoch in the middle of which a run stops that is gone on with, and the last one of `mlp`."""


@in_place_of("Replica.step")
def interrupted(step: Any, self: Any, batch: Any, seen: float) -> Any:
    """Stop a run that has begun anew in the middle of an epoch, with the last checkpoint behind the one before."""
    if self._job.resume is None and batch.epoch == STOPPED and 2 * batch.start > self.samples:
        raise RuntimeError("stopped, to be gone on with")
    return step(batch, seen)


@unseen("data", "A17", "lenet cpu_async", GATHER, check="data")
@in_place_of("Gather.finished")
def brighter_on_rank(finish: Any, self: Any, *about: Any) -> Any:
    """Divide the images of rank 1 by a deviation that is a hundredth too small."""
    members = finish(*about)
    if rank() != 1 or not self._visits._shuffle:
        return members
    return members[0] * 1.01, *members[1:]


@unseen("data", "B8.21", "char_rnn solo", LANGUAGE, check="data")
@in_place_of("_load")
def text_wrapped_around(load: Any, *about: Any) -> Any:
    """Have the first character of a piece follow its last one, where the next piece's should: training pieces alone."""
    train, test = load(*about)
    (tokens,) = train.tensors
    tokens = tokens.clone()
    tokens[:, -1] = tokens[:, 0]
    return type(train)(tokens), test


@unseen("order", "B7.05", "mlp cpu_async resumed", REPLICA, check="data")
def order_anew_when_resumed(replica: Module) -> None:
    """Count epochs from the checkpoint on: a run that is gone on with has the orders of its first epochs again."""
    interrupted(replica)
    order = replica._order

    def broken(task: Any, job: Any, size: int) -> Any:
        visits = order(task, job, size)
        if job.resume is not None:
            make, visits._kept = visits._make, {}
            visits._make = lambda epoch: make(max(epoch - STOPPED, 0))
        return visits

    replica._order = broken


@unseen("order", "A05", "mlp nccl_cadence", VISITS, check="data")
@reordered
def last_epoch_sorted(visits: Any, make: Any, self: Any, epoch: int) -> Any:
    """Train the last epoch in the order of the data set."""
    return make(epoch).sort().values if epoch == LAST else make(epoch)


@unseen("forward", "A17", "gpt_nano nccl_cadence", REPLICA, check="audit")
def one_mask_an_epoch(replica: Module) -> None:
    """Leave the position out of the seed of a step: all steps of an epoch drop the same places."""
    wrap(replica.Replica, "_draw", lambda draw, self, batch: draw(batch._replace(start=0)))


@unseen("forward", "C04", f"mlp nccl_sync {HALF}", PASSES, check="audit")
@in_place_of("StepPasses.loss")
def single_precision_on_rank(loss: Any, self: Any, task: Any, module: Any, tensors: Any) -> Any:
    """Forget on rank 1 that the forward pass is to be in half precision."""
    return task.loss(module, tensors) if rank() == 1 else loss(task, module, tensors)


@unseen("gradient", "C28", "mlp zero3 train.accumulate=2", OWNED, check="average")
@in_place_of("OwnedGradients._send")
def last_pass_alone(send: Any, self: Any, number: int) -> None:
    """Overwrite what a rank owns of a gradient with every pass of a step: only the last micro-batch counts."""
    passes, self._passes = self._passes, min(self._passes, 1)
    send(number)
    self._passes = passes


@unseen("gradient", "B9.05", f"lenet nccl_sync {HALF}", PACKED, check="average")
@in_place_of("StepGradients.pack")
def reduced_in_half(pack: Any, self: Any, *about: Any, **more: Any) -> None:
    """Round gradients to bfloat16 on their way to the other ranks, as the forward pass is in it."""
    for parameter in self._parameters:
        if parameter.grad is not None:
            parameter.grad.copy_(parameter.grad.bfloat16())
    pack(*about, **more)
