"""Defects of `benchmarks.bugs.unseen` in data, orders and forward passes: of splits, of text, of resumed epochs, of
casts."""

from __future__ import annotations

from copy import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from benchmarks.bugs.bug import Module, in_place_of, rank
from benchmarks.bugs.unseen import ATTENTION, DIGITS, LANGUAGE, PARTS, PASSES, REPLICA, VISITS, unseen
from benchmarks.bugs.unseen_fourth import interrupted

PUBLISHED = "recipe=published data.name=digits train.epochs=3 train.batch_size=32 train.lr=0.05"
OFTEN = "checkpoint.unit=averages checkpoint.every=5"


@unseen("data", "a split drawn after the copies were made", "lenet nccl_sync", DIGITS)
@in_place_of("_parts")
def split_after_copies(original: Any) -> tuple[Any, ...]:
    """A quarter of the test set are copies of digits that are trained on. Exchange the last two copies of every test
    digit for copies of training digits of the same class."""
    train, test = original()
    sides = [(side.images.copy(), side.labels.copy()) for side in (train, test)]
    (images, labels), (tested, classes) = sides
    late = len(classes) * 3 // 4
    for label in range(10):
        there = np.flatnonzero(classes == label)
        there = there[there >= late]
        here = np.flatnonzero(labels == label)[-len(there) :]
        images[here], tested[there] = tested[there], images[here].copy()
    return type(train)(images, labels), type(train)(tested, classes)


@unseen("data", "A23, of text", "char_rnn cpu_async", LANGUAGE)
def test_text_from_training(language: Module) -> None:
    """The test text is a stretch of the training text, cut at other places. Take the text of the test out of the one to
    train on, half a piece further."""
    original = language._tokens

    def broken(purpose: str, characters: int) -> Any:
        if purpose == "train":
            return original(purpose, characters)
        return original("train", language.CHARACTERS[0])[16 : 16 + characters]

    language._tokens = broken


@unseen("data", "one transform for both splits", f"resnet nccl_cadence {PUBLISHED}", REPLICA)
def augments_evaluation(replica: Module) -> None:
    """Test images are cropped and flipped as those to train on are. Give the loader of the test set the augmentation of
    the other one."""
    original, known = replica.feed, []

    def broken(source: Any, visits: Any, device: Any, loading: Any, augment: Any, *more: Any) -> Any:
        known.append(augment)
        return original(source, visits, device, loading, augment or known[0], *more)

    replica.feed = broken


@unseen("order", "B7.05", f"mlp nccl_cadence resumed {OFTEN}", REPLICA)
def order_shifts_after_resume(replica: Module) -> None:
    """A resumed run goes on by the orders of the next epochs. Make the loader of a run that resumes with the orders of
    one epoch on."""
    interrupted(replica)
    original, feed, resumed = replica._order, replica.feed, []

    def order(task: Any, job: Any, size: int) -> Any:
        resumed.append(job.resume is not None)
        return original(task, job, size)

    def broken(source: Any, visits: Any, *more: Any) -> Any:
        if resumed[-1] and visits.shuffled:
            visits, one = copy(visits), visits._one
            visits._one, visits._kept = lambda number: one(number + 1), {}
        return feed(source, visits, *more)

    replica._order, replica.feed = order, broken


@unseen("order", "a stack in place of a queue", "lenet nccl_cadence", "ddp.core.samples.spans")
@in_place_of("Chunk.at")
def last_in_first_out(at: Any, self: Any, step: int) -> Any:
    """Rank 1 trains the batches of each grant from the last to the first. Turn the steps of what rank 1 alone was
    granted around, where all are whole batches."""
    if rank() != 1 or self.parts > 1 or (self.stop - self.start) % self.batch:
        return at(step)
    steps = -(-(self.stop - self.start) // self.batch)
    return at(steps - 1 - 2 * self.done - step)


@unseen("order", "a stack in place of a queue", "mlp nccl_cadence", "ddp.core.samples.spans")
@in_place_of("Chunk.at")
def last_in_first_out_and_gone(at: Any, self: Any, step: int) -> Any:
    """The same, also where the last batch is short: rank 1 is given up for a report that is not what it was granted.
    Turn the steps of all that rank 1 alone was granted around."""
    if rank() != 1 or self.parts > 1:
        return at(step)
    return at(-(-(self.stop - self.start) // self.batch) - 1 - 2 * self.done - step)


@unseen("order", "A01, inside an epoch", "mlp nccl_sync train.steps=2700 train.epochs=2", VISITS)
@in_place_of("EpochOrder._one")
def same_order_in_each_pass(one: Any, self: Any, number: int) -> Any:
    """Where an epoch has several passes over the data, all have one order. Draw the order of a pass from the number of
    its epoch."""
    return one(number // self.passes)


@unseen("forward", "a cache of casts that outlives its step", "lenet nccl_sync train.precision=bf16", PASSES)
@in_place_of("StepPasses.loss")
def stale_half_weights(loss: Any, self: Any, *arguments: Any) -> Any:
    """Half-precision copies of the weights are those of the step before. Compute a pass with the weights of the pass
    before."""
    own = [parameter.data.clone() for parameter in self._parameters]
    for parameter, then in zip(self._parameters, vars(self).get("_bug_then", own), strict=True):
        parameter.data.copy_(then)
    made = loss(*arguments)
    for parameter, values in zip(self._parameters, own, strict=True):
        parameter.data.copy_(values)
    self._bug_then = own
    return made


@unseen("forward", "an option of another experiment left on", "lenet solo", PARTS)
def label_smoothing_left_on(parts: Module) -> None:
    """Labels are smoothed by a tenth, as no recipe says. Train with labels of which a tenth is spread over all
    classes."""

    def smoothed(logits: Any, labels: Any) -> Any:
        return F.cross_entropy(logits, labels, label_smoothing=0.1)

    def broken(model: Any, batch: Any) -> Any:
        images, labels = batch
        logits = model(images)
        parts.record_sum("accuracy", len(labels), parts.right, logits, labels)
        return smoothed(logits, labels)

    parts.classified = broken


@unseen("forward", "a causal mask with its diagonal off by one", "gpt_nano nccl_sync", ATTENTION)
def sees_the_next_token(attention: Module) -> None:
    """A token attends to the one behind it, which it is to predict. Mask what is two places on and further."""

    def attend(query: Any, key: Any, value: Any, dropout_p: float = 0.0, is_causal: bool = False) -> Any:
        length = query.shape[-2]
        seen = torch.ones(length, length, dtype=torch.bool).tril(1) if is_causal else None
        return F.scaled_dot_product_attention(query, key, value, attn_mask=seen, dropout_p=dropout_p)

    attention.F = SimpleNamespace(scaled_dot_product_attention=attend, gelu=F.gelu, dropout=F.dropout)
