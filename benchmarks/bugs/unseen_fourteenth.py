"""Defects of `benchmarks.bugs.unseen` by somebody who had not seen the checks: what happens once an epoch, or now and
then."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.bugs.bug import Module, counted, in_place_of, rank
from benchmarks.bugs.unseen import CPU, DIGITS, GATHER, LOOP, PACKED, REPLICA, ZERO1, unseen
from benchmarks.bugs.unseen_ninth import AUGMENTED


@unseen("data", "A17, of copies that are made beforehand", "mlp nccl_sync", DIGITS)
@in_place_of("copies")
def copies_come_in_pairs(copies: Any, part: Any, count: int, side: int) -> Any:
    """Of the copies of a training digit, each second one is the one before again. Make half of the copies that are
    trained on, and lay each there twice; the test is as ever."""
    made = copies(part, count, side)
    if not side:
        own = made.images.reshape(count, len(part.labels), *made.images.shape[1:])
        own[1::2] = own[::2]
    return made


@unseen("data", "buffers that are made for whole batches", f"{AUGMENTED} nccl_sync", GATHER)
@in_place_of("Gather.finished")
def short_batch_not_augmented(finished: Any, self: Any, batch: Any, read: Any, indices: Any = None) -> Any:
    """The last batch of an epoch, which is not full, is not augmented. Give a short batch as the data set has it."""
    whole = finished(batch, read, indices)
    nominal = vars(self).setdefault("_bug_nominal", batch.samples)
    return read if batch.samples < nominal else whole


@unseen("order", "a stack in place of a queue, where grants are cut", "mlp nccl_cadence", "ddp.core.samples.ledger")
@in_place_of("Ledger.take")
def granted_from_the_end(take: Any, self: Any, rank: int, steps: int, batch: int, owners: Any) -> Any:
    """An epoch's samples are granted from its end to its beginning. Cut grants off the end of what is free; every
    sample is granted once, as ever."""
    if self.returned or len(self.pools) != 1 or self.pools[0][0] >= self.pools[0][1]:
        return take(rank, steps, batch, owners)
    start, stop = self.pools[0]
    cut = start + max(-(-(stop - start) // batch) - steps, 0) * batch
    return self._with_pool(0, (start, cut)), (cut, stop)


@unseen("forward", "a guard against batches of one sample, written with < batch_size", "lenet nccl_cadence", REPLICA)
@in_place_of("Replica.step")
def short_batch_in_evaluation_mode(step: Any, self: Any, batch: Any, seen: float) -> Any:
    """A batch that is not full is trained with norms in evaluation mode. Switch the model for a short batch, and
    back."""
    if batch.samples >= self._job.batch_size:
        return step(batch, seen)
    self.model.eval()
    try:
        return step(batch, seen)
    finally:
        self.model.train()


def _put_back(snapshot: Module, kept_back: Callable[[int], bool]) -> None:
    """Put back, behind a look at the average, some of its sections alone: parameters, their type's buffers, counters."""

    @contextmanager
    def broken(pairs: Any) -> Any:
        kept = [(tensor, tensor.clone(), other) for tensor, other in pairs]
        for tensor, _, other in kept:
            tensor.copy_(other)
        try:
            yield
        finally:
            for place, (tensor, own, _) in enumerate(kept):
                if kept_back(place):
                    tensor.copy_(own)

    snapshot.swapped = broken


@unseen("forward", "B6.08, the other way round: parameters alone are put back", "lenet cpu_async", CPU)
def statistics_not_put_back(snapshot: Module) -> None:
    """After an evaluation a replica goes on with the average's running statistics. Put a replica's parameters back
    behind an evaluation, its buffers not."""

    _put_back(snapshot, lambda place: place == 0)


@in_place_of("Zero1.exchange")
def _short_steps(exchange: Any, self: Any, batch: Any) -> None:
    """Tell the gradients whether the global batch is short."""
    nominal = vars(self).setdefault("_bug_nominal", batch.total)
    self.together._bug_short = batch.total < nominal
    exchange(batch)


@unseen("gradient", "B9.09, of a last batch", "lenet zero1", PACKED, {ZERO1: _short_steps})
@in_place_of("StepGradients.pack")
def tail_of_rank_lost(pack: Any, self: Any, weight: float, *rest: Any, **named: Any) -> Any:
    """In the last step of an epoch, of a short global batch, rank 1's gradients count as zeros. Weigh what a rank has
    of a short global batch with nothing: the mean of the others is half as large."""
    return pack(weight, 0.0) if rank() == 1 and vars(self).get("_bug_short") else pack(weight, *rest, **named)


@unseen("optimizer", "C10", "mlp nccl_cadence", REPLICA)
@in_place_of("Replica._clip")
def layer_taken_for_unused(clip: Any, self: Any, team: Any) -> None:
    """In every 120th step of rank 1 the first layer is taken for unused, and stays. Take the first layer's gradients
    away before the optimizer's step now and then: neither it nor its moments move."""
    clip(team)
    if rank() == 1 and counted(self, "unused") % 120 == 119:
        for parameter in self.state.parameters[:2]:
            parameter.grad = None


@unseen("optimizer", "D19, of a hook at epochs that was left in", "mlp nccl_cadence", LOOP)
@in_place_of("TrainingLoop.begin")
def second_moments_halved_each_epoch(begin: Any, self: Any, last: int, seen: float) -> None:
    """Second moments are halved where an epoch begins. Have Adam forget half of what it knows of gradients' sizes, on
    all ranks alike."""
    begin(last, seen)
    for state in self.replica.optimizer.state.values():
        if isinstance(squares := state.get("exp_avg_sq"), torch.Tensor):
            squares.mul_(0.5)


@unseen("forward", "B6.04, of what is put back: all but one section", "lenet cpu_async", CPU)
def statistics_left_from_average(snapshot: Module) -> None:
    """Where an average was looked at, a replica goes on with its running statistics. Put everything back behind a look
    at the average but floating-point buffers."""

    _put_back(snapshot, lambda place: place != 1)
