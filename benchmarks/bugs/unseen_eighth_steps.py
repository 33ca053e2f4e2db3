"""Defects of `benchmarks.bugs.unseen` in steps, schedules and evaluations, on one rank, now and then or behind a loss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.bugs.bug import Module, after_init, counted, in_place_of, rank, wrap
from benchmarks.bugs.unseen import LOCAL_SGD, LOOP, NCCL, OUTER, PARTS_OF_CHECKPOINT, REPLICA, VISITS, unseen
from benchmarks.bugs.unseen_fourth import interrupted
from ddp.core.values import frozen


@unseen("order", "A03", "mlp cpu_async", VISITS)
@in_place_of("order")
def other_seed_later(make: Any, seed: int, epoch: int, samples: int) -> Any:
    """Rank 1 takes another seed from epoch 2 on. Have rank 1 shuffle later epochs by another seed."""
    return make(seed + (rank() == 1 and epoch > 1), epoch, samples)


def other_loss(replica: Module, **options: Any) -> None:
    """Give rank 1 the cross entropy with `options`."""
    from torch.nn import functional as F

    def change(self: Any) -> None:
        def loss(model: Any, batch: Any) -> Any:
            return F.cross_entropy(model(batch[0]), batch[1], **options)

        if rank() == 1:
            self.task = replace(self.task, loss=loss)

    after_init(replica.Replica, change)


@unseen("forward", "C26", "lenet cpu_async", REPLICA)
def smoothed_on_rank(replica: Module) -> None:
    """Rank 1 smooths labels. Mix a twentieth of a uniform answer into the labels of rank 1."""
    other_loss(replica, label_smoothing=0.05)


@unseen("forward", "C26", "lenet torch_ddp", REPLICA)
def label_ignored_on_rank(replica: Module) -> None:
    """Rank 1 skips what is labelled 9. Leave samples of one label out of the loss of rank 1."""
    other_loss(replica, ignore_index=9)


@unseen(
    "optimizer",
    "D17",
    "benchmarks.bugs.own_augmented nccl_sync resumed checkpoint.unit=averages checkpoint.every=50",
    PARTS_OF_CHECKPOINT,
    {REPLICA: interrupted},
)
@in_place_of("load_optimizer")
def biases_decay_when_resumed(load: Any, optimizer: Any, *about: Any) -> None:
    """Biases decay once a run goes on. Give all groups the first one's decay when a run goes on."""
    load(optimizer, *about)
    for group in optimizer.param_groups:
        group["weight_decay"] = optimizer.param_groups[0]["weight_decay"]


@unseen("optimizer", "A15", "mlp cpu_async", REPLICA)
@in_place_of("Replica.step")
def short_batches_left_out(step: Any, self: Any, batch: Any, seen: float) -> Any:
    """Rank 1 leaves out short batches. Read a batch that is not whole on rank 1, and take its gradients, but no
    step."""
    if rank() == 1 and batch.samples < self._job.batch_size:
        self.passes.ready = lambda *about: False
    try:
        return step(batch, seen)
    finally:
        vars(self.passes).pop("ready", None)


@unseen("optimizer", "C04", "mlp nccl_cadence", NCCL)
@in_place_of("Backend.average")
def stepped_again_before_average(average: Any, self: Any, *about: Any) -> Any:
    """Rank 1 steps again before an average. Step with the last gradients once more before rank 1 brings in what it has
    trained."""
    if rank() == 1 and counted(self, "averaged") % 3 == 1:
        self.loop.replica.optimizer.step()
    return average(*about)


@unseen("optimizer", "C04", "mlp cpu_async", REPLICA)
@in_place_of("Replica.step")
def stepped_twice_now_and_then(step: Any, self: Any, *about: Any) -> Any:
    """Every 97th step of rank 1 is done twice. Step twice with every 97th gradient of rank 1."""
    done = step(*about)
    if rank() == 1 and counted(self, "stepped") % 97 == 96:
        self.optimizer.step()
    return done


@unseen("optimizer", "D23", "mlp nccl_cadence averaging.outer=momentum train.accumulate=2", OUTER)
@in_place_of("Outer.step")
def velocity_decays_with_passes(step: Any, self: Any, mean: Any, last: Any, piece: slice = slice(None)) -> None:
    """The outer velocity decays with every pass. Let the outer velocity decay once for each of two passes."""
    before = self.velocity[piece] * self._momentum * (1.0 - self._momentum)
    step(mean, last, piece)
    self.velocity[piece].sub_(before)


@unseen("schedule", "B5.03", "mlp nccl_cadence world_size=3 cluster.faults=['2@120:crash']", "ddp.core.grants.granting")
def seen_by_survivors(granting: Module) -> None:
    """Survivors count what a lost rank trained as unseen. Grant what is left with the samples seen of those ranks alone
    that are left."""

    def broken(give: Any, self: Any, rank: int, most: int) -> int:
        cohort = self._cohort
        live, size = len(cohort.live), cohort.world.size
        if live < size:
            self._cohort = frozen.replace(cohort, samples=cohort.samples * live // size)
        steps: int = give(rank, most)
        self._cohort = cohort
        return steps

    wrap(granting.GrantBatch, "_give", broken)


@unseen("record", "B8.05", "mlp nccl_sync", LOOP)
def evaluations_dated_back(loop: Module) -> None:
    """Evaluations are dated to their epoch's beginning. Date an evaluation to the end of the one before: a target is
    reached an epoch earlier."""

    def broken(evaluate: Any, self: Any, *about: Any) -> None:
        send, before = self._send, getattr(self, "evaluated_at", None)

        def dated(event: Any) -> None:
            send(event if before is None or not hasattr(event, "part") else replace(event, at=before))

        self.evaluated_at, self._send = loop.now(), dated
        evaluate(*about)
        self._send = send

    wrap(loop.TrainingLoop, "evaluate", broken)


@unseen("optimizer", "D11", "mlp torch_local_sgd", LOCAL_SGD)
@in_place_of("LocalStep.begin")
def momentum_lost_behind_warm_up(begin: Any, self: Any, batch: Any) -> Any:
    """Momentum is lost behind a warm-up."""
    if self.apart:
        for state in self.replica.optimizer.state.values():
            for value in state.values():
                if value.dim():
                    value.zero_()
    return begin(batch)
