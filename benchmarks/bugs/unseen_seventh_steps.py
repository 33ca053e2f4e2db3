"""Defects of `benchmarks.bugs.unseen` in optimizers, schedules and averages, by somebody who had not read the checks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.bugs.bug import Module, in_place_of, once_made, wrap
from benchmarks.bugs.unseen import (
    CPU,
    LOCAL_SGD,
    LOOP,
    NCCL,
    OUTER,
    PARTS_OF_CHECKPOINT,
    REPLICA,
    SHARED,
    ZERO1,
    unseen,
)
from benchmarks.bugs.unseen_seventh import stopped

ON_THE_WAY = 700
"""Step at which runs that are gone on with end."""
ended = partial(stopped, at=ON_THE_WAY)


@unseen(
    "optimizer",
    "D07",
    "mlp nccl_sync resumed checkpoint.unit=averages checkpoint.every=200",
    PARTS_OF_CHECKPOINT,
    {REPLICA: ended},
)
@in_place_of("load_optimizer")
def counters_lost_when_resumed(load: Any, optimizer: Any, *about: Any) -> None:
    """An optimizer's count of steps is lost when a run goes on. Begin the optimizer's count of steps anew when a run
    goes on."""
    load(optimizer, *about)
    for state in optimizer.state.values():
        if "step" in state:
            state["step"].zero_()


@unseen("optimizer", "D03", "benchmarks.bugs.own_augmented torch_zero1", "ddp.backends.torch_zero1")
def groups_without_settings(torch_zero1: Module) -> None:
    """Groups lose their decay. Make the sharded optimizer of the parameters and rates of the groups: their decay is the
    class's own."""

    def broken(build: Any, self: Any) -> None:
        make = torch_zero1.ZeroRedundancyOptimizer

        def bare(groups: Any, **more: Any) -> Any:
            return make([{"params": group["params"], "lr": group["lr"]} for group in groups], **more)

        torch_zero1.ZeroRedundancyOptimizer = bare
        build()
        torch_zero1.ZeroRedundancyOptimizer = make

    wrap(torch_zero1.ZeroStep, "build", broken)


@unseen("optimizer", "D19", "mlp nccl_cadence averaging.optimizer_state=true", "ddp.replica.optim.optimizer_state")
@in_place_of("_probe")
def second_moments_forgotten(probe: Any, optimizer: Any) -> Any:
    """Second moments are not averaged. Average of the optimizer's state what is called momentum alone."""
    made = probe(optimizer)
    return [(p, {key: value for key, value in state.items() if key != "exp_avg_sq"}) for p, state in made]


@unseen("optimizer", "D11", "mlp nccl_cadence cluster.restart=1 cluster.faults=['1@60:crash']", "ddp.engine.handover")
@in_place_of("load_sent")
def moments_not_taken_over(load: Any, scratch: Any, round: int, loop: Any, backend: Any) -> Any:
    """A rank that returns has no moments. Have a rank that was started again begin with an optimizer that has no
    state."""
    optimizer = loop.replica.optimizer
    optimizer.load_state_dict = lambda state: None
    joined = load(scratch, round, loop, backend)
    del optimizer.load_state_dict
    return joined


@unseen("schedule", "B5.09", "benchmarks.bugs.own_sampled nccl_cadence", "ddp.replica.optim.lr_schedule")
def scheduler_a_step_ahead(lr_schedule: Module) -> None:
    """PyTorch's schedulers are a step ahead. Give the rate that PyTorch's scheduler has after its step."""
    wrap(lr_schedule.LRSchedule, "__call__", lambda call, self, seen: call(min(seen + 1.0 / self.steps, 1.0)))


@unseen("average", "B6.04", "lenet cpu_async", CPU)
@in_place_of("Backend.apply")
def statistics_taken_whole(apply: Any, self: Any, *about: Any, **named: Any) -> Any:
    """Statistics lose what moved them meanwhile. Have a rank's running statistics become the average: what moved them
    meanwhile is lost."""
    for section, excess, mean in zip(self._sections, self._snapshot, self._average, strict=True):
        if section.kind == "buffers" and mean.is_floating_point():
            excess.copy_(section.values - mean)
    return apply(*about, **named)


@unseen("average", "D19", "mlp torch_local_sgd world_size=3", LOCAL_SGD)
def warm_up_counted_in_periods(local: Module) -> None:
    """Nothing is averaged for 300 steps. Begin to average parameters after 100 periods, while gradients are averaged
    for 100 steps."""

    def broken(build: Any, self: Any) -> None:
        make = local.PeriodicModelAverager
        late = self.warmup * self.period
        local.PeriodicModelAverager = lambda period, warmup_steps: make(period=period, warmup_steps=late)
        build()
        local.PeriodicModelAverager = make

    wrap(local.LocalStep, "build", broken)


@unseen(
    "average", "B6.28", "mlp cpu_cadence world_size=3 cluster.speeds=[0.3,1.0,0.5] cluster.faults=['0@60:crash']", CPU
)
@in_place_of("Reducer._reduce")
def survivors_swap_weights(reduce: Any, self: Any, order: Any) -> None:
    """Survivors have each other's weights. Look up the weights of those that are left by their ranks, which are no
    longer their places."""
    samples = order.samples
    reduce(replace(order, samples=tuple(samples[rank % len(samples)] for rank in order.members)))


@unseen("average", "B6.04", "mlp nccl_cadence world_size=3 averaging.elastic=0.3", NCCL)
@in_place_of("Backend._prepare_average")
def elastic_the_other_way(prepare: Any, self: Any) -> None:
    """Replicas go the other part of the way. Take the part of the way to the average for the part that stays."""
    settings = self.job.averaging
    self.job = replace(self.job, averaging=replace(settings, elastic=1.0 - settings.elastic))
    prepare()


@unseen("average", "D17", "lenet cpu_cadence averaging.outer=momentum", OUTER)
@in_place_of("Outer.step")
def outer_momentum_dampened(step: Any, self: Any, mean: Any, last: Any, piece: Any = slice(None)) -> None:
    """The outer velocity is dampened. Dampen what enters the outer velocity, by one less the momentum."""
    before = self.velocity[piece] * self._momentum
    step(mean, last, piece)
    self.velocity[piece].sub_(before).mul_(1.0 - self._momentum).add_(before)


@unseen("average", "B17", "lenet graph_sync", SHARED)
@once_made("Exchange")
def statistics_of_first_replica(self: Any) -> None:
    """Replicas take the first one's statistics. Have all replicas take the running statistics of the first one."""
    for number, gradients in enumerate(self.gradients):
        lay = gradients._changes.lay
        gradients._changes.lay = lambda weight, lay=lay, own=float(not number): lay(own)


@unseen("average", "B9.09", "mlp zero1", ZERO1)
@in_place_of("ShardedStep._fetches")
def tail_not_fetched(fetches: Any, self: Any) -> Any:
    """The last elements are not fetched. Fetch what other ranks have moved in whole lines of 64 elements: what is left
    at the end stays old."""
    cut = []
    for flat, start, stop, runs in fetches():
        last = start + (stop - start) // 64 * 64
        within = [(owner, first, min(end, last)) for owner, first, end in runs if first < last]
        cut.append((flat, start, last, within))
    return cut


@unseen("average", "B7.13", "mlp cpu_async resumed checkpoint.unit=averages checkpoint.every=5", LOOP, {REPLICA: ended})
def own_replica_saved(loop: Module) -> None:
    """A checkpoint has rank 0's replica. Save rank 0's replica for the model, where that is the average."""
    wrap(loop.TrainingLoop, "save", lambda save, self, order, kept=(), averaged_weights=None: save(order, kept))
