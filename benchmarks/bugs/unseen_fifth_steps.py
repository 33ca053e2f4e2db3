"""Further defects of `benchmarks.bugs.unseen` in what follows from a forward pass: gradients, optimizers, schedules. Partial
ones.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch

from benchmarks.bugs.bug import Module, in_place_of, rank, wrap
from benchmarks.bugs.unseen import (
    CLIPPED,
    OUTER,
    PARTS_OF_CHECKPOINT,
    PASSES,
    RATES,
    REPLICA,
    STORAGE,
    THREE,
    WORKER,
    ZERO1,
    unseen,
)
from benchmarks.bugs.unseen_fourth import interrupted


@unseen("gradient", "B9.17", f"mlp nccl_sync {CLIPPED}", REPLICA)
def clipped_by_each_rank(replica: Module) -> None:
    """Clip a rank's own gradients, before they are averaged, and not their average."""

    def broken(gradients: Any, self: Any, *about: Any) -> Any:

        done = gradients(*about)
        if self.gradient_sync is not None and self._job.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.state.parameters, self._job.max_grad_norm)
        return done

    wrap(replica.Replica, "_gradients", broken)
    wrap(replica.Replica, "_clip", lambda clip, self, team: clip(team) if team is None else None)


@unseen("gradient", "B9.17", f"lenet zero2 {THREE} {CLIPPED}", ZERO1)
@in_place_of("ShardedStep.clip")
def clipped_by_shard(clip: Any, self: Any, limit: float) -> None:
    """Clip every shard by its own norm, in place of that of all."""
    collectives = self.site.collectives
    collectives.all_reduce = lambda tensors: (0.0, 0)
    try:
        clip(limit)
    finally:
        del collectives.all_reduce


@unseen("gradient", "C18", f"lenet solo train.precision=fp16 {CLIPPED}", PASSES)
def clipped_while_scaled(passes: Module) -> None:
    """Clip gradients before the factor on the loss is taken off them."""

    def made(make: Any, self: Any, job: Any, *about: Any) -> None:
        make(job, *about)
        self.limit = job.max_grad_norm

    def broken(ready: Any, self: Any, optimizer: Any, team: Any) -> Any:

        if self.scale is not None and self.limit is not None:
            scaled = [p for group in optimizer.param_groups for p in group["params"]]
            torch.nn.utils.clip_grad_norm_(scaled, self.limit)
        return ready(optimizer, team)

    wrap(passes.StepPasses, "__init__", made)
    wrap(passes.StepPasses, "ready", broken)


@unseen("gradient", "C02", "lenet nccl_cadence train.accumulate=4", REPLICA)
@in_place_of("Replica._accumulate")
def short_step_by_nominal_passes(accumulate: Any, self: Any, parts: Any, tensors: Any, factor: float, at: float) -> Any:
    """Divide the gradients of a step's passes by how many it should have: one at the end of an epoch has fewer."""
    return accumulate(parts, tensors, factor * len(parts) / self._job.step.accumulate, at)


@unseen("gradient", "C30", f"lenet nccl_sync {THREE} data.samples=6434", STORAGE)
@in_place_of("BucketStorage.fill")
def idle_rank_sends_old_gradients(fill: Any, self: Any, number: int, weight: float) -> None:
    """Have a rank without a sample send what the buffer holds from the step before."""
    self.attach(self.plan[number]) if not weight else fill(number, weight)


@unseen("optimizer", "D11", "resnet_graph nccl_cadence", REPLICA)
@in_place_of("Replica.step")
def momentum_of_head_lost_on_rank(step: Any, self: Any, batch: Any, seen: float) -> Any:
    """Lose the momentum of the last layer with every epoch, on rank 1."""
    if rank() == 1 and batch.epoch != getattr(self, "present", 0):
        for parameter in self.state.parameters[-2:]:
            self.optimizer.state.pop(parameter, None)
    self.present = batch.epoch
    return step(batch, seen)


def _in_two_groups(optimizer: Any, **others: Any) -> Any:
    """Return the optimizer with biases and what norms have in a group of their own."""
    (group,) = optimizer.param_groups
    small = [parameter for parameter in group["params"] if parameter.dim() < 2]
    group["params"] = [parameter for parameter in group["params"] if parameter.dim() > 1]
    optimizer.add_param_group({**group, "params": small, **others})
    return optimizer


@unseen("optimizer", "D17", "resnet cpu_cadence", REPLICA)
def norms_not_decayed(replica: Module) -> None:
    """Leave biases and norms out of the weight decay, which the recipe has on everything."""
    usable = replica.usable
    replica.usable = lambda made, state: _in_two_groups(usable(made, state), weight_decay=0.0)


@unseen(
    "optimizer",
    "B7.13",
    "lenet nccl_cadence resumed checkpoint.unit=averages checkpoint.every=1",
    PARTS_OF_CHECKPOINT,
    {REPLICA: interrupted},
)
@in_place_of("RankParts.save")
def older_moments_in_checkpoint(save: Any, self: Any, *about: Any) -> Any:
    """Write the optimizer's state of the checkpoint before: it is copied to the host, and the copy is late."""
    optimizer = self._replica.optimizer
    present = copy.deepcopy(optimizer.state_dict())
    older, self.older = getattr(self, "older", present), present
    optimizer.state_dict = lambda: older
    try:
        return save(*about)
    finally:
        del optimizer.state_dict


@unseen("optimizer", "D13", "lenet solo train.accumulate=4", REPLICA)
@in_place_of("Replica.step")
def steps_counted_by_passes(step: Any, self: Any, batch: Any, seen: float) -> Any:
    """Count Adam's steps by the passes that they are made of."""
    done = step(batch, seen)
    for state in self.optimizer.state.values():
        state["step"] += self._job.step.accumulate - 1
    return done


@unseen("optimizer", "B9.07", "mlp nccl_cadence averaging.outer=nesterov", OUTER)
@in_place_of("Outer.step")
def velocity_in_half(step: Any, self: Any, mean: Any, last: Any, piece: slice = slice(None)) -> None:
    """Keep the outer optimizer's velocity in bfloat16."""
    step(mean, last, piece)
    self.velocity[piece] = self.velocity[piece].bfloat16()


WARM_UP = 0.2
"""Part of the run in which gpt_nano's rate rises."""


@unseen("schedule", "D13", "gpt_nano cpu_cadence", RATES)
def warm_up_by_own_samples(rates: Module) -> None:
    """Count, while the rate rises, the samples of one rank of two."""
    wrap(
        rates.Rates,
        "apply",
        lambda apply, self, fraction: apply(fraction / 2 if fraction < 2 * WARM_UP else fraction),
    )


def in_two_groups(replica: Module) -> None:
    """Give biases and norms a group of their own, with the same settings. No defect by itself."""
    usable = replica.usable
    replica.usable = lambda made, state: _in_two_groups(usable(made, state))


@unseen("schedule", "D03", "lenet cpu_sync", RATES, {REPLICA: in_two_groups})
@in_place_of("Rates.apply")
def second_group_not_scheduled(apply: Any, self: Any, fraction: float) -> Any:
    """Set the rate of the first parameter group alone."""
    rate, groups = apply(fraction), self._optimizer.param_groups
    self._set = [rate, *self._own[1:]]
    for group, own in zip(groups[1:], self._own[1:], strict=True):
        group["lr"] = own
    return rate


@unseen("schedule", "B5.15", f"conv_ae cpu_async {THREE}", WORKER)
def rate_stands_within_grant(worker: Module) -> None:
    """Look at the schedule where a grant begins, on rank 1."""

    def broken(act: Any, self: Any) -> Any:
        following, action = act()
        if rank() == 1 and isinstance(action, worker.Step):
            action = replace(action, seen=float(self.lane[0].seen))
        return following, action

    wrap(worker.Worker, "act", broken)
