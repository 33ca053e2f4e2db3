"""Defects of `benchmarks.bugs.unseen` in optimizers, schedules and averages: with three ranks, in graphs, under PyTorch's
own classes, of runs that go on with other ranks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.bugs.bug import Module, after_init, in_place_of, wrap
from benchmarks.bugs.unseen import ACCUMULATE, CPU, REPLICA, unseen
from benchmarks.bugs.unseen_fourth import interrupted

OFTEN = "checkpoint.unit=averages checkpoint.every=50"


@unseen("optimizer", "D17", "resnet_graph zero2", REPLICA)
def decay_decoupled(replica: Module) -> None:
    """Weights decay beside the momentum. Take AdamW's decay for SGD: parameters shrink, and gradients have no part of
    it."""
    decays: list[float] = []

    def before(optimizer: Any, *about: Any) -> None:
        decays[:] = [group["weight_decay"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.data.mul_(1.0 - group["lr"] * group["weight_decay"])
            group["weight_decay"] = 0.0

    def after(optimizer: Any, *about: Any) -> None:
        for group, decay in zip(optimizer.param_groups, decays, strict=True):
            group["weight_decay"] = decay

    def change(self: Any) -> None:
        self.optimizer.register_step_pre_hook(before)
        self.optimizer.register_step_post_hook(after)

    after_init(replica.Replica, change)


@unseen("optimizer", "D03", "benchmarks.bugs.own_augmented torch_zero1", REPLICA)
@in_place_of("Replica.step")
def second_group_stands_at_end(step: Any, self: Any, batch: Any, seen: float) -> Any:
    """The second group stands still in the last epoch. Leave biases, a group of their own, as they are in the last
    epoch."""
    late = batch.epoch == self._job.epochs - 1
    kept = [(p, p.detach().clone()) for p in self.model.parameters() if late and p.dim() <= 1]
    done = step(batch, seen)
    for parameter, values in kept:
        parameter.data.copy_(values)
    return done


@unseen(
    "optimizer",
    "D07",
    f"mlp zero2 world_size=3 resumed:world_size=2 {OFTEN}",
    "ddp.sharding.recut",
    {REPLICA: interrupted},
)
@in_place_of("_between")
def steps_count_anew_when_recut(between: Any, *about: Any) -> Any:
    """Steps are counted anew where shards are cut anew. Cut moments anew, and begin the count of their steps."""
    return {key: v * 0 if key == "step" else v for key, v in between(*about).items()}


@unseen("schedule", "B5.09", "mlp graph_cadence", ACCUMULATE)
def rate_of_windows_end(accumulate: Module) -> None:
    """A window has the rate of its end. Step with the rate of the samples that are seen behind the window."""
    wrap(
        accumulate.Accumulating,
        "contribute",
        lambda contribute, self, total, seen: contribute(total, seen + total),
    )


@unseen("schedule", "B5.03", "lenet torch_fsdp", REPLICA)
def schedule_stops_short(replica: Module) -> None:
    """The schedule stops short of its end. Take no fraction above 95 %: the rate stands still then."""
    wrap(replica.Replica, "fraction", lambda fraction, self, seen: min(fraction(seen), 0.95))


@unseen("average", "B6.28", "mlp cpu_cadence world_size=3 cluster.speeds=[1.0,0.8,0.5]", CPU)
@in_place_of("Reducer._reduce")
def third_weighs_as_second(reduce: Any, self: Any, order: Any) -> None:
    """A third replica weighs as the second does. Give the third of three snapshots the second one's weight."""
    samples = order.samples
    reduce(order if len(samples) < 3 else replace(order, samples=(*samples[:2], samples[1])))


@unseen("average", "B6.08", "lenet nccl_sync cluster.restart=1 cluster.faults=['1@60:crash']", "ddp.backends.base")
@in_place_of("GroupBackend.load_state_dict")
def statistics_not_handed_over(take: Any, self: Any, state: Any) -> None:
    """A rank that returns has no running statistics. Take over parameters, and begin with the statistics of a new
    model."""
    take(state)
    for module in self.loop.replica.model.modules():
        if hasattr(module, "reset_running_stats"):
            module.reset_running_stats()
