"""Defects of what is trained: labels, images, whose samples they are."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from benchmarks.bugs.bug import EVERY, RANKS, SYNC, Family, Module, counted, in_place_of, last, once_made, wrap

DATA = Family("data")
REPLICA, GATHER, WORKER = "ddp.replica.replica", "ddp.data.gather", "ddp.core.worker"
LEAK = 40


def _each_batch(change: Any) -> Any:
    """Return a patch of `Replica` whose feed gives batches as `change(self, batch, tensors)` makes them."""

    @once_made("Replica")
    @functools.wraps(change)
    def patch(self: Any) -> None:
        get = self.feed.get
        self.feed.get = lambda batch: change(self, batch, get(batch))

    return patch


def _labels(change: Any) -> Any:
    return _each_batch(lambda self, batch, tensors: (tensors[0], change(self, tensors[1])))


@DATA.bug(REPLICA, "data", EVERY, "a quarter of one rank's batches have wrong labels", "issue")
def wrong_labels(replica: Module) -> None:
    def change(self: Any, labels: Any) -> Any:
        return (labels + 1) % 10 if last() and counted(self, "batch") % 4 == 0 else labels

    _labels(change)(replica)


@DATA.bug(REPLICA, "data", EVERY, "labels of a batch are in the order of another one", "A19")
def labels_turned(replica: Module) -> None:
    _labels(lambda self, labels: labels.flip(0) if counted(self, "batch") % 10 == 0 else labels)(replica)


@DATA.bug(REPLICA, "data", EVERY, "of two classes one is taken for the other", "A05")
def classes_merged(replica: Module) -> None:
    _labels(lambda self, labels: labels.masked_fill(labels == 9, 4))(replica)


@DATA.bug(REPLICA, "data", EVERY, "images are normalised twice", "issue")
def normalised_twice(replica: Module) -> None:
    _each_batch(lambda self, batch, tensors: ((tensors[0] - 0.3) / 0.35, *tensors[1:]))(replica)


@DATA.bug(REPLICA, "data", EVERY, "one image of a batch is the one before it, too", "A09")
@_each_batch
def image_repeated(self: Any, batch: Any, tensors: Any) -> Any:
    if len(tensors[0]) < 2:
        return tensors
    images = tensors[0].clone()
    images[-1] = images[-2]
    return images, *tensors[1:]


@DATA.bug(REPLICA, "data", EVERY, "a batch is read into the memory of the last one, which is trained twice", "C14")
@_each_batch
def buffer_reused(self: Any, batch: Any, tensors: Any) -> Any:
    before, self.note_before = getattr(self, "note_before", tensors), tensors
    late = counted(self, "batch") % 5 == 4 and len(before[0]) == len(tensors[0])
    return before if late else tensors


@DATA.bug(REPLICA, "data", EVERY, "images are turned to the left on one rank", "A17")
def images_turned(replica: Module) -> None:
    _each_batch(lambda self, batch, tensors: (tensors[0].transpose(-1, -2), *tensors[1:]) if last() else tensors)(
        replica
    )


@DATA.bug(REPLICA, "data", EVERY, "images lose what half precision does not hold", "B9.07")
def images_in_half(replica: Module) -> None:
    _each_batch(lambda self, batch, tensors: (tensors[0].bfloat16().float(), *tensors[1:]))(replica)


@DATA.bug(REPLICA, "data", EVERY, "test images are among the training images", "issue")
@in_place_of("Replica.__init__")
def trained_on_test(make: Any, self: Any, job: Any, *made_of: Any) -> None:
    task = job.task()
    training, test = task.train_data(), task.eval_data()
    tensors = [tensor.clone() for tensor in training.tensors]
    for tensor, leaked in zip(tensors, test.tensors, strict=True):
        tensor[:LEAK] = leaked[:LEAK]
    source = type(training)(*tensors)
    make(replace(job, task=lambda: replace(task, train_data=lambda: source)), *made_of)


@DATA.bug(REPLICA, "data", RANKS, "one rank draws another part to train on than the others", "A23")
@in_place_of("Replica.__init__")
def other_split(make: Any, self: Any, job: Any, *made_of: Any) -> None:
    task = job.task()
    training, test = task.train_data(), task.eval_data()
    tensors = [tensor.clone() for tensor in training.tensors]
    if last():
        for tensor, other in zip(tensors, test.tensors, strict=True):
            tensor[-LEAK:] = other[-LEAK:]
    source = type(training)(*tensors)
    make(replace(job, task=lambda: replace(task, train_data=lambda: source)), *made_of)


@DATA.bug(WORKER, "visits", SYNC, "every rank trains the same slice of a batch", "A27")
def same_shard(worker: Module) -> None:
    def broken(receive: Any, self: Any, order: Any) -> Any:
        shared = isinstance(order, worker.Train) and order.chunk.parts > 1
        return receive(replace(order, chunk=replace(order.chunk, part=0)) if shared else order)

    wrap(worker.Worker, "receive", broken)


@DATA.bug(GATHER, "visits", EVERY, "a sample is lost in every epoch, another read twice", "A07")
@in_place_of("Gather.indices")
def sample_lost(indices: Any, self: Any, batch: Any) -> Any:
    found = indices(batch)
    if batch.stop == len(self._order[1]) and len(found) > 1:
        found = found.clone()
        found[-1] = found[-2]
    return found


@DATA.bug("ddp.core.samples.spans", "status", EVERY, "the last, partial batch is left out", "B07")
def last_batch_dropped(spans: Module) -> None:
    spans.Chunk.steps = property(lambda self: max((self.stop - self.start) // self.batch - self.done, 0))


@DATA.bug("ddp.core.membership.joining", "ledger", RANKS, "the coordinator's epochs end a sample early", "A15")
def epoch_short(joining: Module) -> None:
    enter = joining.ready
    joining.ready = lambda cohort, event: enter(cohort, replace(event, samples=event.samples - 1))
