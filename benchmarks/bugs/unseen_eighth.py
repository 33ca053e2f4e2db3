"""Defects of `benchmarks.bugs.unseen` from the list of historical ones, those that had none yet: of runs that go on from a
checkpoint, once or twice, of passes, counters and running statistics.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from benchmarks.bugs.bug import Module, after_init, in_place_of, last, wrap
from benchmarks.bugs.unseen import CPU, NCCL, PARTS_OF_CHECKPOINT, PASSES, ZERO1, unseen
from benchmarks.bugs.unseen_fourth import interrupted

REPLICA = {"ddp.replica.replica": interrupted}
OFTEN = "checkpoint.unit=averages checkpoint.every=50"

# Checkpoints


def going_on(checkpoint: Module, change: Any) -> None:
    """Change what a run goes on with of the coordinator's checkpoint."""
    resume = checkpoint.resume

    def broken(job: Any) -> Any:
        found = resume(job)
        if found is None:
            return None
        return replace(found, manifest=replace(found.manifest, books=change(found.coordinator)))

    checkpoint.resume = broken


@unseen("data", "A13", f"mlp nccl_sync resumed {OFTEN}", "ddp.checkpoint.checkpoint", REPLICA)
def place_not_taken_over(checkpoint: Module) -> None:
    """A run that goes on begins the epoch anew. Save what was trained of an epoch, and do not go on with it."""
    going_on(checkpoint, lambda books: replace(books, begun=books.epochs, ledgers=()))


@unseen("data", "B15", f"benchmarks.bugs.own_drawing nccl_sync resumed {OFTEN}", PARTS_OF_CHECKPOINT, REPLICA)
@in_place_of("load")
def numbers_of_first_rank(load: Any, path: Any, of: Any) -> Any:
    """All ranks go on with rank 0's random numbers. Have all ranks go on with the streams of rank 0, which alone are
    written (B7.01 is the same)."""
    part = load(path, of)
    if of["rank"]:
        part["others"] = load(path.with_name("rank-0.pt"), of | {"rank": 0})["others"]
    return part


@unseen("optimizer", "D05", f"mlp zero1 world_size=3 resumed:world_size=2 {OFTEN}", "ddp.sharding.recut", REPLICA)
@in_place_of("_between")
def moments_shifted_by_padding(between: Any, *about: Any) -> Any:
    """Moments are shifted where shards are cut anew. Cut moments anew as if there were padding between them."""
    return {key: v.roll(8) if getattr(v, "ndim", 0) else v for key, v in between(*about).items()}


def first_parameters(replica: Module) -> None:
    """Keep what parameters begin with."""
    interrupted(replica)
    make = replica.trainable

    def broken(made: Any) -> Any:
        for parameter in made.parameters():
            parameter.begun = parameter.detach().clone()
        return make(made)

    replica.trainable = broken


@unseen(
    "optimizer", "D09", f"mlp zero3 resumed {OFTEN}", "ddp.sharding.zero3", {"ddp.replica.replica": first_parameters}
)
@in_place_of("Zero3._place")
def shards_not_loaded(place: Any, self: Any) -> None:
    """Shards are not those of the model that was loaded. Load the model, and leave the shards that are stepped with as
    they were made."""
    place()
    for group in self.groups:
        for shard in group.shards:
            shard.values.data.copy_(shard.parameter.begun.reshape(-1)[shard.start : shard.stop])


@unseen("optimizer", "B7.09", f"lenet nccl_sync train.precision=fp16 resumed {OFTEN}", PASSES, REPLICA)
def scale_lost_when_resumed(passes: Module) -> None:
    """The loss's factor is not taken over. Go on with the first factor of the loss."""
    wrap(passes.StepPasses, "restore", lambda restore, self, state: None)


FIRST, SECOND = 0.3, 0.8
"""Places in an epoch at which a run ends."""


@in_place_of("Replica.step")
def interrupted_twice(step: Any, self: Any, batch: Any, seen: float) -> Any:
    """Stop a run in an epoch, and what goes on from there later in the same."""
    place = batch.epoch + batch.start / self.samples
    begun = vars(self).setdefault("begun_at", place)
    at = next((at for at in (2 + FIRST, 2 + SECOND) if self._job.resume is None or begun < 2 + FIRST < at), None)
    if at is not None and place > at and batch.epoch == 2:
        raise RuntimeError("stopped, to be gone on with")
    return step(batch, seen)


@unseen(
    "data",
    "B7.07",
    f"mlp nccl_sync resumed resumed {OFTEN}",
    "ddp.checkpoint.checkpoint",
    {"ddp.replica.replica": interrupted_twice},
)
def place_since_resumed(checkpoint: Module) -> None:
    """A second checkpoint counts from the first. Write of an epoch that a run went on within what was trained since:
    right after the first time, wrong after more."""
    publish, resume = checkpoint.publish, checkpoint.resume
    since: dict[int, int] = {}

    def kept(job: Any) -> Any:
        found = resume(job)
        for ledger in found.coordinator.ledgers if found is not None else ():
            since[ledger.epoch] = sum(stop - start for start, stop in ledger.merged)
        return found

    def broken(job: Any, order: Any) -> Any:
        ledgers = tuple(_less(ledger, since.get(ledger.epoch, 0)) for ledger in order.coordinator.ledgers)
        return publish(job, replace(order, coordinator=replace(order.coordinator, ledgers=ledgers)))

    checkpoint.publish, checkpoint.resume = broken, kept


def _less(ledger: Any, samples: int) -> Any:
    merged = tuple((start, stop - samples) for start, stop in ledger.merged if stop - samples > start)
    return replace(ledger, merged=merged).reopen() if samples else ledger


# Steps and averages


@unseen("gradient", "B9.03", "lenet solo train.accumulate=3 train.batch_size=50", "ddp.replica.replica")
def passes_weigh_alike(replica: Module) -> None:
    """Means of passes weigh alike. Add the means of a step's passes and divide by their number."""

    def broken(one: Any, self: Any, tensors: Any, factor: float, at: float, samples: int, several: bool = False) -> Any:
        return one(tensors, factor * self.share / samples if several else factor, at, samples, several)

    def accumulate(whole: Any, self: Any, parts: Any, *about: Any) -> Any:
        self.share = sum(part.samples for part in parts) / len(parts)
        return whole(parts, *about)

    wrap(replica.Replica, "_pass", broken)
    wrap(replica.Replica, "_accumulate", accumulate)


def large_factor(loss_scale: Module) -> None:
    """Begin with a factor of the loss at which gradients overflow."""
    loss_scale.LossScale.__init__.__defaults__ = (2.0**22, 0)


@unseen(
    "gradient",
    "B9.15",
    "mlp zero1 train.precision=fp16",
    ZERO1,
    {"ddp.replica.optim.loss_scale": large_factor},
    check="status",
)
def overflow_not_shared(zero1: Module) -> None:
    """The flag of overflow stays on its rank. Have every rank decide by its own shards whether to step."""
    wrap(zero1.ShardedStep, "agree", lambda agree, self, finite: (agree(finite), finite)[1])


@unseen("average", "B6.06", "lenet nccl_cadence", NCCL)
@in_place_of("Backend._take")
def counters_divided(take: Any, self: Any) -> Any:
    """Counters are divided by the ranks. Divide by the ranks what takes the maximum, as is done with means."""
    for counter in self._counted:
        counter.div_(self.job.world_size, rounding_mode="floor")
    return take()


@unseen("forward", "B6.16", "lenet nccl_cadence", "ddp.replica.replica")
@in_place_of("Replica.step")
def statistics_by_own_batch(step: Any, self: Any, batch: Any, seen: float) -> Any:
    """Norms learn by a batch's own size. Give running statistics the momentum of a batch's share of a whole one."""
    for module in self.model.modules():
        if hasattr(module, "running_var"):
            module.momentum = 0.1 * batch.samples / self._job.batch_size
    return step(batch, seen)


@unseen("average", "D21", "mlp cpu_cadence averaging.outer=nesterov", CPU)
def differences_of_unlike_models(snapshot: Module) -> None:
    """Ranks begin apart, and share differences alone. Have the last rank be off by what it began with: what it brings
    in and takes is without that."""

    def apart(self: Any, sign: float) -> None:
        for section in self._sections if last() else ():
            if section.kind == "parameters":
                section.values.add_(self.off[section.values.dtype], alpha=sign)

    def begin(self: Any) -> None:

        generator = torch.Generator().manual_seed(1)
        kinds = [section.values for section in self._sections if section.kind == "parameters"]
        self.off = {v.dtype: torch.randn(v.shape, generator=generator, dtype=v.dtype) * 0.01 for v in kinds}

    def broken(act: Any, self: Any, *about: Any, **named: Any) -> Any:
        if getattr(self, "met", False):
            apart(self, -1.0)
        done = act(*about, **named)
        self.met = True
        apart(self, 1.0)
        return done

    after_init(snapshot.Backend, begin)
    for name in ("snapshot", "apply"):
        wrap(snapshot.Backend, name, broken)
