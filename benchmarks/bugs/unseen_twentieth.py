"""Defects of `benchmarks.bugs.unseen` by somebody who had not seen the checks: of what is trained, in combinations that were
least tried. Those of results are in `unseen_twentieth_results`.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.bugs.bug import Module, in_place_of, wrap
from benchmarks.bugs.unseen import PASSES, RATES, REPLICA, VISITS, ZERO1, unseen
from benchmarks.bugs.unseen_fourth import interrupted

OWN = "benchmarks.bugs.own_plain"
PIECES = "data.samples=3001 train.epochs=2"
LONGER = "data.samples=3001 train.epochs=4"
PATCHES = "data.samples=960 train.epochs=2"
SIXTEEN = "world_size=16 cluster.speeds=[1,1,1,1,1,1,1,1,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5]"


@unseen("data", "a seed of epoch and index", "benchmarks.bugs.own_augmented cpu_cadence train.steps=400", VISITS)
def second_visit_augmented_alike(epoch_order: Module) -> None:
    """A sample that an epoch has twice is augmented alike both times. Number visits by the sample alone."""
    wrap(epoch_order.EpochOrder, "distinct", lambda number, self, start, indices: indices)


@unseen(
    "forward",
    "deepspeedai/DeepSpeed, cast_forward_inputs on targets",
    f"conv_ae nccl_async {PIECES} train.precision=bf16",
    PASSES,
)
@in_place_of("StepPasses.loss")
def targets_in_half(loss: Any, self: Any, task: Any, module: Any, tensors: Any) -> Any:
    """A batch is cast to half precision, so that a user's own loss is computed in it. Cast all floating members."""
    half = self._half
    return loss(task, module, tuple(t.to(half) if half and t.is_floating_point() else t for t in tensors))


@unseen(
    "gradient", "a norm whose reduction overlaps the next step", f"lenet zero1 {PIECES} train.max_grad_norm=0.5", ZERO1
)
@in_place_of("ShardedStep.clip")
def clipped_by_norm_of_step_before(clip: Any, self: Any, limit: float) -> None:
    """Gradients are clipped by the norm of the step before. Keep the norm for a step."""
    gradients = [shard.values.grad for shard in self.shards if shard.values.grad is not None]
    squares = torch.zeros(1, dtype=torch.float64)
    for gradient in gradients:
        squares += gradient.double().square().sum()
    self.site.collectives.all_reduce([squares])
    norm = float(squares.sqrt())
    before, self._bug_norm = vars(self).get("_bug_norm", norm), norm
    for gradient in gradients:
        gradient.mul_(min(limit / (before + 1e-6), 1.0))


@unseen(
    "gradient",
    "D13, of a scaler",
    "mlp nccl_sync train.precision=fp16 train.accumulate=4 train.batch_size=8",
    "ddp.replica.optim.loss_scale",
)
def loss_scale_counts_passes(loss_scale: Module) -> None:
    """The factor of the loss grows after 2,000 passes, not steps. Count four for a step."""
    loss_scale.STEPS //= 4


@unseen("optimizer", "AdamW with a decay of its own", f"vit torch_fsdp {PATCHES}", REPLICA)
@in_place_of("Replica._clip")
def decay_without_schedule(clip: Any, self: Any, team: Any) -> None:
    """Weights decay by the recipe's rate, whatever the schedule. Add what the rate of the step leaves out."""
    clip(team)
    for group, rate in zip(self.optimizer.param_groups, self.rates._own, strict=True):
        for parameter in group["params"]:
            parameter.data.mul_(1 - (rate - group["lr"]) * group["weight_decay"])


@in_place_of("Zero2.exchange")
def _kept_before_step(exchange: Any, self: Any, batch: Any) -> None:
    """Keep shards that do not begin their parameter."""
    exchange(batch)
    self._bug_parts = [(s.values.data, s.values.data.clone()) for s in self.shards if s.start]


@unseen(
    "optimizer",
    "D03, of shards that are looked up by their first element",
    f"vit zero2 {PATCHES}",
    ZERO1,
    {"ddp.sharding.zero2": _kept_before_step},
)
@in_place_of("ShardedStep.end")
def second_part_not_decayed(end: Any, self: Any) -> None:
    """Of a parameter that two ranks share, the second part does not decay. Take its decay back after a step."""
    group = self.site.optimizer.param_groups[0]
    for part, before in self._bug_parts:
        part.add_(before, alpha=group["lr"] * group["weight_decay"])
    end()


@unseen(
    "schedule",
    "horovod/horovod, elastic runs whose rate is not scaled anew",
    f"mlp nccl_sync resumed:world_size=4 {LONGER} train.lr_scale_ratio=0.5",
    RATES,
    {REPLICA: interrupted},
)
@in_place_of("Rates.capture")
def scale_of_fewer_ranks(capture: Any, self: Any) -> Any:
    """A run that goes on with more ranks keeps the rate of the fewer. Save the scale, too."""
    fixed, factor, _, follows = capture()
    return fixed, factor, self._scale, follows


@unseen("schedule", "B5.11, of a rate that is read once", f"{OWN} virtual_cpu_async {SIXTEEN}", "ddp.virtual.rows")
def rates_of_first_row(rows: Module) -> None:
    """Ranks that are computed in one operation have the rate of the first. Repeat the first one's step."""
    wrap(rows.ReplicaRows, "rates", lambda rates, self, steps: rates([steps[0]] * len(steps)))
