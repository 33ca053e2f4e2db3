"""Defects of `benchmarks.bugs.unseen` in optimizers, schedules, averages and evaluations: of runs that lose ranks,
go on from a checkpoint, or where nobody looks.
"""

from __future__ import annotations

from typing import Any

from benchmarks.bugs.bug import Module, counted, in_place_of, rank, wrap
from benchmarks.bugs.unseen import CPU, LOCAL_SGD, LOOP, NCCL, PARTS_OF_CHECKPOINT, REPLICA, unseen
from benchmarks.bugs.unseen_fourth import interrupted


@unseen("optimizer", "B9.07", "mlp nccl_cadence checkpoint.unit=averages checkpoint.every=3", PARTS_OF_CHECKPOINT)
@in_place_of("RankParts.save")
def moments_spoilt_after_checkpoint(save: Any, self: Any, *about: Any) -> Any:
    """Moments are rounded once they are written. Round moments once they are written: what is sent to the host lies
    where they do."""
    done = save(*about)
    for state in self._replica.optimizer.state.values():
        for value in state.values():
            if getattr(value, "ndim", 0):
                value.copy_(value.bfloat16())
    return done


@unseen(
    "optimizer",
    "B7.17",
    "mlp nccl_cadence resumed checkpoint.unit=averages checkpoint.every=5 averaging.outer=nesterov",
    PARTS_OF_CHECKPOINT,
    {REPLICA: interrupted},
)
@in_place_of("RankParts.restore")
def velocity_lost_when_resumed(restore: Any, self: Any, kept: Any, *about: Any) -> Any:
    """The outer velocity is lost when a run goes on. Leave what a backend keeps between averages as it is when a run
    goes on."""
    before = [tensor.clone() for tensor in kept]
    done = restore(kept, *about)
    for tensor, values in zip(kept, before, strict=True):
        tensor.copy_(values)
    return done


@unseen("optimizer", "B9.01", "mlp cpu_cadence averaging.optimizer_state=true cluster.speeds=[1.0,0.5]", CPU)
@in_place_of("average")
def moments_averaged_alike(average: Any, mean: Any, laid: Any, weights: Any, **treatment: Any) -> Any:
    """Moments of all ranks weigh alike. Weigh all ranks alike in the average of optimizer states."""
    if treatment.get("blend") is None:
        weights = [float(weight > 0) for weight in weights]
    return average(mean, laid, weights, **treatment)


@unseen("schedule", "B5.15", "mlp cpu_async cluster.restart=1 cluster.faults=['1@60:crash']", REPLICA)
@in_place_of("Replica.fraction")
def rate_of_own_life(fraction: Any, self: Any, seen: float) -> Any:
    """A rank that is started again begins its schedule. Begin the schedule when a rank is started again."""
    if not self._job.life:
        return fraction(seen)
    self.born = getattr(self, "born", seen)
    return fraction(seen - self.born)


@unseen("schedule", "B5.09", "lenet nccl_sync resumed checkpoint.unit=averages checkpoint.every=5", REPLICA)
def warmed_up_again_when_resumed(replica: Module) -> None:
    """A run that goes on warms up again. Raise the rate anew over the first tenth of what is left when a run goes
    on."""
    interrupted(replica)

    def broken(step: Any, self: Any, batch: Any, seen: float) -> Any:
        if self._job.resume is not None:
            first = self.first_seen = getattr(self, "first_seen", seen)
            whole = self._job.epochs * self.samples
            self.rates._factor = min((seen - first) / (0.1 * (whole - first)), 1.0)
        return step(batch, seen)

    wrap(replica.Replica, "step", broken)


@unseen("average", "B9.01", "mlp nccl_cadence", LOOP)
@in_place_of("TrainingLoop.contribute")
def contribution_by_nominal_batch(contribute: Any, self: Any, round: int) -> Any:
    """A rank brings in nominal batches. Bring in as many samples as steps of the nominal batch have."""
    steps, _ = contribute(round)
    return steps, steps * self.job.batch_size


@unseen("average", "B9.07", "mlp cpu_sync", CPU)
@in_place_of("Backend.snapshot")
def unwatched_in_half(snap: Any, self: Any, order: Any) -> Any:
    """Snapshots that nobody sketches are rounded. Round snapshots to bfloat16, but for those of which a sketch is
    wanted: these go another way."""
    sketch = snap(order)
    for laid in self._snapshot if not order.sketched else ():
        if laid.is_floating_point():
            laid.copy_(laid.bfloat16())
    return sketch


@unseen("average", "B6.14", "mlp nccl_cadence", REPLICA)
@in_place_of("Replica.step")
def last_bias_unlinked(step: Any, self: Any, batch: Any, seen: float) -> Any:
    """Rank 1's last bias is no more averaged. Give the last bias of rank 1 memory of its own in the second epoch: it is
    averaged no more."""
    if rank() == 1 and batch.epoch == 1 and not counted(self, "unlinked"):
        bias = self.state.parameters[-1]
        bias.data = bias.data.clone()
    return step(batch, seen)


@unseen("average", "a sparse wire", "mlp nccl_cadence averaging.wire=bfloat16", NCCL)
@in_place_of("_lay")
def small_differences_stay(lay: Any, wire: Any, values: Any, weight: float, last: Any) -> None:
    """Small differences are not sent. Send no differences below a thirtieth of the largest."""
    lay(wire, values, weight, last)
    if last is not None and weight:
        wire.masked_fill_(wire.abs() < wire.abs().max() / 30, 0.0)


@unseen("average", "B6.14", "mlp torch_local_sgd", LOCAL_SGD)
@in_place_of("LocalStep.build")
def biases_left_apart(build: Any, self: Any) -> None:
    """Biases are never averaged. Average no biases after the warm-up."""
    build()
    averager = self.replica.optimizer.averager
    average = averager.average_parameters
    averager.average_parameters = lambda params: average(
        [{**group, "params": [p for p in group["params"] if p.dim() > 1]} for group in params]
    )


@unseen("evaluation", "B11", "lenet solo train.epochs=5", REPLICA)
@in_place_of("Replica.evaluate")
def some_epochs_in_training_mode(evaluate: Any, self: Any, *about: Any) -> Any:
    """Every third evaluation is in training mode. Evaluate every third time in training mode; running statistics are
    put back."""
    if counted(self, "evaluated") % 3 != 2:
        return evaluate(*about)
    kept = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
    self.model.eval = lambda: self.model
    try:
        return evaluate(*about)
    finally:
        del self.model.eval
        for buffer, values in kept:
            buffer.copy_(values)


@unseen("evaluation", "B17", "mlp nccl_cadence averaging.elastic=0.5", NCCL)
def evaluated_before_settled(allreduce: Module) -> None:
    """A replica is evaluated, which is on its way to the average. Evaluate a replica on its way to the average, and not
    the average, where replicas stay apart."""
    from contextlib import nullcontext

    wrap(allreduce.Backend, "averaged_weights", lambda averaged_weights, self, exact: nullcontext())
