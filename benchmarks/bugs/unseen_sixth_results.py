"""Defects of `benchmarks.bugs.unseen` in optimizers, schedules, averages and evaluations: of runs that lose ranks,
go on from a checkpoint, or where nobody looks.
"""

from __future__ import annotations

from typing import Any

from benchmarks.bugs.bug import Module, counted, rank, wrap
from benchmarks.bugs.unseen import unseen
from benchmarks.bugs.unseen_fourth import interrupted


@unseen("optimizer", "B9.07", "mlp nccl_cadence checkpoint.unit=averages checkpoint.every=3", "ddp.checkpoint.parts")
def moments_spoilt_after_checkpoint(parts: Module) -> None:
    """Moments are rounded once they are written. Round moments once they are written: what is sent to the host lies
    where they do."""

    def broken(save: Any, self: Any, *about: Any) -> Any:
        done = save(*about)
        for state in self._replica.optimizer.state.values():
            for value in state.values():
                if getattr(value, "ndim", 0):
                    value.copy_(value.bfloat16())
        return done

    wrap(parts.RankParts, "save", broken)


@unseen(
    "optimizer",
    "B7.17",
    "mlp nccl_cadence resumed checkpoint.unit=averages checkpoint.every=5 averaging.outer=nesterov",
    "ddp.checkpoint.parts",
    {"ddp.replica.replica": interrupted},
)
def velocity_lost_when_resumed(parts: Module) -> None:
    """The outer velocity is lost when a run goes on. Leave what a backend keeps between averages as it is when a run
    goes on."""

    def broken(restore: Any, self: Any, kept: Any, *about: Any) -> Any:
        before = [tensor.clone() for tensor in kept]
        done = restore(kept, *about)
        for tensor, values in zip(kept, before, strict=True):
            tensor.copy_(values)
        return done

    wrap(parts.RankParts, "restore", broken)


@unseen(
    "optimizer",
    "B9.01",
    "mlp cpu_cadence averaging.optimizer_state=true cluster.speeds=[1.0,0.5]",
    "ddp.backends.snapshot",
)
def moments_averaged_alike(snapshot: Module) -> None:
    """Moments of all ranks weigh alike. Weigh all ranks alike in the average of optimizer states."""
    average = snapshot.average

    def broken(mean: Any, laid: Any, weights: Any, **treatment: Any) -> Any:
        if treatment.get("blend") is None:
            weights = [float(weight > 0) for weight in weights]
        return average(mean, laid, weights, **treatment)

    snapshot.average = broken


@unseen("schedule", "B5.15", "mlp cpu_async cluster.restart=1 cluster.faults=['1@60:crash']", "ddp.replica.replica")
def rate_of_own_life(replica: Module) -> None:
    """A rank that is started again begins its schedule. Begin the schedule when a rank is started again."""

    def broken(fraction: Any, self: Any, seen: float) -> Any:
        if not self._job.life:
            return fraction(seen)
        self.born = getattr(self, "born", seen)
        return fraction(seen - self.born)

    wrap(replica.Replica, "fraction", broken)


@unseen(
    "schedule", "B5.09", "lenet nccl_sync resumed checkpoint.unit=averages checkpoint.every=5", "ddp.replica.replica"
)
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


@unseen("average", "B9.01", "mlp nccl_cadence", "ddp.engine.loop")
def contribution_by_nominal_batch(loop: Module) -> None:
    """A rank brings in nominal batches. Bring in as many samples as steps of the nominal batch have."""

    def broken(contribute: Any, self: Any, round: int) -> Any:
        steps, _ = contribute(round)
        return steps, steps * self.job.batch_size

    wrap(loop.TrainingLoop, "contribute", broken)


@unseen("average", "B9.07", "mlp cpu_sync", "ddp.backends.snapshot")
def unwatched_in_half(snapshot: Module) -> None:
    """Snapshots that nobody sketches are rounded. Round snapshots to bfloat16, but for those of which a sketch is
    wanted: these go another way."""

    def broken(snap: Any, self: Any, order: Any) -> Any:
        sketch = snap(order)
        for laid in self._snapshot if not order.sketched else ():
            if laid.is_floating_point():
                laid.copy_(laid.bfloat16())
        return sketch

    wrap(snapshot.Backend, "snapshot", broken)


@unseen("average", "B6.14", "mlp nccl_cadence", "ddp.replica.replica")
def last_bias_unlinked(replica: Module) -> None:
    """Rank 1's last bias is no more averaged. Give the last bias of rank 1 memory of its own in the second epoch: it is
    averaged no more."""

    def broken(step: Any, self: Any, batch: Any, seen: float) -> Any:
        if rank() == 1 and batch.epoch == 1 and not counted(self, "unlinked"):
            bias = self.state.parameters[-1]
            bias.data = bias.data.clone()
        return step(batch, seen)

    wrap(replica.Replica, "step", broken)


@unseen("average", "a sparse wire", "mlp nccl_cadence averaging.wire=bfloat16", "ddp.backends.allreduce")
def small_differences_stay(allreduce: Module) -> None:
    """Small differences are not sent. Send no differences below a thirtieth of the largest."""
    lay = allreduce._lay

    def broken(wire: Any, values: Any, weight: float, last: Any) -> None:
        lay(wire, values, weight, last)
        if last is not None and weight:
            wire.masked_fill_(wire.abs() < wire.abs().max() / 30, 0.0)

    allreduce._lay = broken


@unseen("average", "B6.14", "mlp torch_local_sgd", "ddp.backends.torch_local_sgd")
def biases_left_apart(torch_local_sgd: Module) -> None:
    """Biases are never averaged. Average no biases after the warm-up."""

    def broken(build: Any, self: Any) -> None:
        build()
        averager = self.replica.optimizer.averager
        average = averager.average_parameters
        averager.average_parameters = lambda params: average(
            [{**group, "params": [p for p in group["params"] if p.dim() > 1]} for group in params]
        )

    wrap(torch_local_sgd.LocalStep, "build", broken)


@unseen("evaluation", "B11", "lenet solo train.epochs=5", "ddp.replica.replica")
def some_epochs_in_training_mode(replica: Module) -> None:
    """Every third evaluation is in training mode. Evaluate every third time in training mode; running statistics are
    put back."""

    def broken(evaluate: Any, self: Any, *about: Any) -> Any:
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

    wrap(replica.Replica, "evaluate", broken)


@unseen("evaluation", "B17", "mlp nccl_cadence averaging.elastic=0.5", "ddp.backends.allreduce")
def evaluated_before_settled(allreduce: Module) -> None:
    """A replica is evaluated, which is on its way to the average. Evaluate a replica on its way to the average, and not
    the average, where replicas stay apart."""
    from contextlib import nullcontext

    wrap(allreduce.Backend, "averaged_weights", lambda averaged_weights, self, exact: nullcontext())
