"""Defects of `benchmarks.bugs.unseen` in set-ups, and in data, order, forward pass and gradients of runs that lose ranks,
go on from a checkpoint, or have steps that are seldom looked at.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from benchmarks.bugs.bug import Module, after_init, counted, in_place_of, rank
from benchmarks.bugs.unseen import AVERAGE, GATHER, PARTS, REPLICA, unseen


@unseen("data", "C14", "lenet nccl_sync loader.kind=streaming", "ddp.data.streaming")
@in_place_of("Streaming.get")
def readers_share_memory(get: Any, self: Any, batch: Any) -> Any:
    """Every 40th batch that is read ahead is the one before it. Have the reader's every 40th batch lie where the one
    before lies: its memory is given away too early."""
    members = get(batch)
    before, self.before = getattr(self, "before", members), members
    late = self.gather._visits._shuffle and counted(self, "read") % 40 == 39
    return before if late and len(before[0]) == len(members[0]) else members


@unseen("data", "A21", "mlp cpu_async world_size=3 cluster.faults=['2@120:crash']", GATHER)
@in_place_of("Gather.indices")
def survivors_read_a_batch_on(indices: Any, self: Any, batch: Any) -> Any:
    """What a lost rank leaves is read from a batch further on. Read what was taken over from a lost rank, which lies
    before what was trained last, from a batch further on."""
    place, last = (batch.epoch, batch.start), getattr(self, "last", (-1, 0))
    self.last = max(place, last)
    if self._visits._shuffle and place[0] == last[0] and place < last:
        batch = batch._replace(start=batch.start + batch.samples, stop=batch.stop + batch.samples)
    return indices(batch)


LATE = 0.95
"""Part of an epoch from which on rank 1 is in the next one's order."""


@unseen("order", "A07", "mlp cpu_async", GATHER)
@in_place_of("Gather.indices")
def next_order_early(indices: Any, self: Any, batch: Any) -> Any:
    """Rank 1 ends epochs in the next one's order. Have rank 1 read the last samples of an epoch in the order of the
    next one: its reader is ahead."""
    visits = self._visits
    early = rank() == 1 and visits._shuffle and batch.start > LATE * len(visits)
    return indices(batch._replace(epoch=batch.epoch + 1) if early else batch)


@unseen("order", "A09", "mlp nccl_sync resumed checkpoint.unit=averages checkpoint.every=5", REPLICA)
def restarts_at_epoch(replica: Module) -> None:
    """The rest of an epoch is its beginning again. Have a rank that goes on from a checkpoint read the part of an epoch
    that is left from that epoch's beginning."""
    from benchmarks.bugs.unseen_fourth import interrupted

    interrupted(replica)

    def change(self: Any) -> None:
        if self._job.resume is None:
            return
        indices, begun = self.feed.gather.indices, []

        def broken(batch: Any) -> Any:
            begun.append((batch.epoch, batch.start))
            epoch, start = begun[0]
            late = start if batch.epoch == epoch else 0
            return indices(batch._replace(start=batch.start - late, stop=batch.stop - late))

        self.feed.gather.indices = broken

    after_init(replica.Replica, change)


@unseen("forward", "B5.17", "gpt_nano nccl_sync", "bench.models.gpt_nano")
def dropout_of_setup(gpt_nano: Module) -> None:
    """A set-up drops twice as much. Drop a fifth, where the set-up drops a tenth."""
    gpt_nano.DROPOUT = 0.2


@unseen("forward", "B5.17", "lenet nccl_cadence", "bench.models.lenet")
@in_place_of("_stage")
def epsilon_of_setup(stage: Any, *about: Any, **named: Any) -> Any:
    """A set-up's norms have another epsilon. Give the set-up's batch norms another epsilon."""
    modules = stage(*about, **named)
    modules[1].eps = 1e-2
    return modules


@unseen("forward", "B21", "lenet cpu_async resumed", REPLICA)
def statistics_stand_when_resumed(replica: Module) -> None:
    """Rank 1's running statistics stand when a run goes on. Keep the running statistics of norms where the checkpoint
    had them, on rank 1."""
    from benchmarks.bugs.unseen_fourth import interrupted

    interrupted(replica)

    def change(self: Any) -> None:
        for module in self.model.modules() if self._job.resume is not None and rank() == 1 else ():
            if hasattr(module, "running_var"):
                module.momentum = 0.0

    after_init(replica.Replica, change)


@unseen("gradient", "C02", "mlp nccl_sync world_size=3", AVERAGE)
@in_place_of("GradientAverage.begin")
def short_batch_by_nominal(begin: Any, self: Any, batch: Any) -> float:
    """A short global batch counts as a whole one. Weigh gradients of a short global batch by the samples that it should
    have."""
    self.widest = max(getattr(self, "widest", 0), batch.total)
    factor: float = begin(batch)
    self._weight = batch.samples / self.widest
    return factor


@unseen("gradient", "C22", "mlp nccl_sync", AVERAGE)
@in_place_of("GradientAverage.exchange")
def doubled_now_and_then(exchange: Any, self: Any, batch: Any) -> None:
    """Gradients of every 400th step are doubled. Double the gradients of every 400th step, on all ranks."""
    exchange(batch)
    if counted(self, "exchanged") % 400 == 399:
        for parameter in self._state.parameters:
            parameter.grad.mul_(2.0)


@unseen("gradient", "B9.05", "lenet solo train.accumulate=4", REPLICA)
@in_place_of("Replica._gradients")
def passes_added_in_half(gradients: Any, self: Any, *about: Any) -> Any:
    """Passes add up in bfloat16. Round what the passes of a step have added up to bfloat16 after each of them."""
    done = gradients(*about)
    for parameter in self.state.parameters if about[-1] else ():
        parameter.grad.copy_(parameter.grad.bfloat16())
    return done


@unseen("gradient", "B6.24", "lenet nccl_sync world_size=3 cluster.faults=['2@120:crash']", AVERAGE)
@in_place_of("GradientAverage.begin")
def divided_by_those_who_began(begin: Any, self: Any, batch: Any) -> float:
    """A rank weighs as one of three when two are left. Give a rank the weight of one among those that the run began
    with, also when one is lost."""
    factor: float = begin(batch)
    self.share = min(getattr(self, "share", 1.0), self._weight or 1.0)
    self._weight = min(self._weight, self.share) if batch.total == batch.samples * 2 else self._weight
    return factor


# Set-ups


@unseen("optimizer", "D17", "resnet solo", "bench.models.resnet")
def decay_of_setup(resnet: Module) -> None:
    """A set-up has no weight decay. Lose the weight decay of a set-up."""

    def task_of(model: Any, recipe: Any, data_dir: str) -> Any:
        optimizer = partial(torch.optim.SGD, momentum=0.9)
        depth = recipe.depth or resnet.DEPTH
        return resnet.classification(lambda data: model(data, depth), optimizer, recipe, data_dir)

    resnet.SETUP = replace(resnet.SETUP, task=partial(task_of, resnet.build))


@unseen("schedule", "B5.07", "mlp nccl_cadence", PARTS)
def schedule_of_setup(parts: Module) -> None:
    """Half a cosine ends at a fiftieth. Have half a cosine end at a fiftieth of the rate."""
    cosine = parts.SCHEDULES["cosine"]
    parts.SCHEDULES["cosine"] = lambda seen: 0.02 + 0.98 * cosine(seen)
