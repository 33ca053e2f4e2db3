"""Defects of `benchmarks.bugs.unseen` in gradients, optimizers and schedules: of weights of a mean, of groups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.bugs.bug import Module, in_place_of, once_made
from benchmarks.bugs.unseen import ACCUMULATE, PACKED, REPLICA, TORCH, unseen


@unseen("gradient", "B07, of gradients", "mlp torch_ddp", TORCH)
@in_place_of("TorchStep.begin")
def last_batch_by_nominal_size(begin: Any, self: Any, batch: Any) -> float:
    """The gradients of the short last batch are scaled as if it were full. Divide by the samples that a global batch
    has by the settings."""
    factor: float = begin(batch)
    return factor * batch.total / (self.replica._job.batch_size * self.size)


@unseen("gradient", "C02, over replicas", "mlp graph_cadence cluster.speeds=[1,0.5]", ACCUMULATE)
@in_place_of("Accumulating.contribute")
def replicas_count_alike(contribute: Any, self: Any, *arguments: Any) -> float:
    """The means of a window's replicas count alike, however many samples each had. Weigh every replica's part of a
    window by their number."""
    pack, size = self.gradients.pack, self._job.world_size
    self.gradients.pack = lambda weight: pack(1 / size)
    try:
        done: float = contribute(*arguments)
    finally:
        del self.gradients.pack
    return done


@unseen("gradient", "a hook for compression that stayed", "resnet_graph nccl_sync", PACKED)
@in_place_of("StepGradients.pack")
def gradients_travel_in_half(pack: Any, self: Any, *arguments: Any, **named: Any) -> None:
    """Gradients are rounded to half precision before they are sent. Round what goes to the other ranks to float16."""
    pack(*arguments, **named)
    for values in self.values:
        values.copy_(values.half().float())


@unseen(
    "optimizer", "two groups copied from another training script", "resnet_graph nccl_cadence", "bench.models.resnet"
)
def norms_without_decay(resnet: Module) -> None:
    """Norms and biases have no weight decay, and the set-up says that all have. Make a group of its own of parameters
    with one dimension."""

    def broken(build: Any, optimizer: Any, recipe: Any, data_dir: str) -> Any:
        def grouped(parameters: Any, lr: float) -> Any:
            every = list(parameters)
            flat = [p for p in every if p.ndim == 1]
            groups = [{"params": [p for p in every if p.ndim > 1]}, {"params": flat, "weight_decay": 0.0}]
            return optimizer(groups, lr=lr)

        return original(build, grouped, recipe, data_dir)

    original = resnet.classification
    resnet.classification = broken


@unseen("optimizer", "a counter that two kernels move", "mlp cpu_async", REPLICA)
@once_made("Replica")
def biases_count_twice(self: Any) -> None:
    """Adam counts each step of a bias twice. Move the counters of parameters with one dimension on by one more."""
    step, optimizer = self.optimizer.step, self.optimizer

    def twice() -> None:
        step()
        for parameter, state in optimizer.state.items():
            if parameter.ndim == 1 and "step" in state:
                state["step"] += 1

    optimizer.step = twice


@unseen("schedule", "B5.03, of a last batch", "mlp zero2", REPLICA)
@in_place_of("Replica.fraction")
def schedule_of_whole_batches(fraction: Any, self: Any, seen: float) -> float:
    """An epoch is taken for its whole batches, so that the schedule ends before the run. Divide by the samples that
    make whole batches."""
    batch = self._job.batch_size * self._job.world_size
    return min(seen / (self._job.epochs * (self.samples // batch * batch)), 1.0)


@unseen("schedule", "B5.09, of the scale", "lenet nccl_sync train.lr_scale_ratio=0.5", "bench.config.plan")
@in_place_of("spec_of")
def scale_counts_every_rank(original: Any, config: Any, recipe: Any, resolved: Any, *more: Any) -> Any:
    """The rate grows with all ranks, not with those beside the first. Scale by 1 + ratio times the number of ranks."""
    scale = 1.0 + recipe.lr_scale_ratio * resolved["world_size"]
    return replace(original(config, recipe, resolved, *more), lr_scale=scale)
