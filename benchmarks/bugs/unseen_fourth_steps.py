"""The last defects of `benchmarks.bugs.unseen` in what follows from gradients. Small or seldom, in models, modes and
settings of their own.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from benchmarks.bugs.bug import Module, counted, in_place_of, rank, wrap
from benchmarks.bugs.unseen import (
    AVERAGE,
    FIGURES,
    HALF,
    LOOP,
    NCCL,
    PACKED,
    PARTS,
    PARTS_OF_CHECKPOINT,
    PASSES,
    RATES,
    REPLICA,
    TORCH,
    UNEQUAL,
    unseen,
)
from benchmarks.bugs.unseen_fourth import interrupted


@unseen(
    "optimizer", "B7.11", "lenet nccl_cadence resumed", PARTS_OF_CHECKPOINT, {REPLICA: interrupted}, check="agreement"
)
def moments_lost_when_resumed(parts: Module) -> None:
    """Leave rank 1 an optimizer that begins when the run is gone on with: nothing is there yet that could be filled."""
    load = parts.load_optimizer
    parts.load_optimizer = lambda *about: None if rank() == 1 else load(*about)


@unseen("optimizer", "C24", "lenet cpu_async", REPLICA, check="idle")
@in_place_of("Replica.step")
def norms_frozen_at_the_end(step: Any, self: Any, batch: Any, seen: float) -> Any:
    """Freeze what a batch norm learns in the last epoch, on rank 1."""

    norms = [part for part in self.model.modules() if isinstance(part, torch.nn.modules.batchnorm._BatchNorm)]
    frozen = [p for norm in norms for p in norm.parameters()] if rank() == 1 else []
    before = [p.detach().clone() for p in frozen]
    done = step(batch, seen)
    if batch.epoch == self._job.epochs - 1:
        for parameter, values in zip(frozen, before, strict=True):
            parameter.data.copy_(values)
    return done


APART = 10
"""Steps from one look at the schedule to the next."""


@unseen("schedule", "B5.15", "mlp nccl_cadence", RATES, check="audit")
@in_place_of("Rates.apply")
def rate_every_tenth_step(apply: Any, self: Any, fraction: float) -> Any:
    """Look at the schedule every tenth step."""
    if counted(self, "applied") % APART == 0:
        self.held = fraction
    return apply(self.held)


@unseen("schedule", "D13", "mlp nccl_sync train.accumulate=4", REPLICA, check="audit")
@in_place_of("Replica.fraction")
def horizon_of_whole_batches(fraction: Any, self: Any, seen: float) -> Any:
    """Take the length of the run for that of so many whole global batches, of all micro-batches."""
    job = self._job
    whole = job.batch_size * job.world_size
    return fraction(seen * self.samples / (math.ceil(self.samples / whole) * whole))


SEVENTH = 7


@unseen("average", "B6.28", f"mlp nccl_cadence {UNEQUAL}", NCCL, check="average")
@in_place_of("Backend.average")
def alike_every_seventh_round(average: Any, self: Any, order: Any, samples: int) -> Any:
    """Weigh ranks alike in every seventh round."""
    return average(order, 1 if samples and order.round % SEVENTH == SEVENTH - 1 else samples)


@unseen("average", "B19", f"lenet graph_cadence {UNEQUAL}", PACKED, check="average")
@in_place_of("StepGradients.pack")
def statistics_alike(pack: Any, self: Any, weight: float, *more: Any) -> None:
    """Weigh the running statistics of replicas alike, whatever their parts of a batch are."""
    pack(0.5 if weight else 0.0, weight)


@unseen("average", "B9.01", "lenet torch_ddp world_size=3", TORCH, check="audit")
@in_place_of("TorchStep.begin")
def slices_alike(begin: Any, self: Any, batch: Any) -> Any:
    """Leave to PyTorch how the slices of a batch weigh: all alike, though the last batch's are not equal."""
    return begin(batch._replace(total=batch.samples * self.size) if batch.samples else batch)


@unseen("evaluation", "B03", "lenet nccl_sync", REPLICA, check="audit")
@in_place_of("Replica.evaluate")
def evaluated_without_rest(evaluate: Any, self: Any, *part: Any) -> Any:
    """Leave out of the figures of a part its last batch, which is not a whole one."""
    task, counts = self.task, [0]

    def measured(model: Any, batch: Any) -> Any:
        loss, metric = task.evaluate(model, batch)
        whole = len(batch[0]) == task.eval_batch
        counts[0] += len(batch[0]) if whole else 0
        return loss * whole, metric * whole

    self.task = replace(task, evaluate=measured)
    samples, loss, metric, content = evaluate(*part)
    self.task = task
    return samples, loss / counts[0] * samples, metric / counts[0] * samples, content


@unseen("evaluation", "B9.07", f"lenet solo {HALF}", PASSES, check="audit")
def evaluated_as_trained(passes: Module) -> None:
    """Evaluate in the half precision of training."""
    wrap(passes.StepPasses, "eager", lambda eager, self: self.autocast())


@unseen("record", "B8.07", f"mlp nccl_cadence {UNEQUAL}", LOOP, check="breakdown")
@in_place_of("TrainingLoop.pause")
def waiting_between_steps(pause: Any, self: Any) -> float:
    """Count what passes from one step to the next as work, also where the rank waited, averaged or evaluated."""
    stepped = self._stepped
    since: float = pause()
    self._stepped = stepped
    return since


@in_place_of("GradientAverage.exchange")
def norm_noted(exchange: Any, self: Any, batch: Any) -> None:
    """Note the norm of a rank's gradients before they are averaged."""
    gradients = [p.grad for p in self._state.parameters if p.grad is not None]
    self._optimizer.norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
    exchange(batch)


@unseen("record", "B25", "mlp nccl_sync", FIGURES, {AVERAGE: norm_noted}, check="audit")
@in_place_of("StepFigures.step")
def norm_of_own_gradients(step: Any, self: Any, optimizer: Any) -> None:
    """Report the norm of the gradients that was noted."""
    known = len(self._norms)
    step(optimizer)
    if len(self._norms) > known:
        self._norms[-1] = (self._norms[-1][0], optimizer.norm)


@unseen("record", "B07", "lenet solo", PARTS, check="audit")
def accuracy_by_nominal_batch(parts: Module) -> None:
    """Count a short batch as a whole one in the training metric."""
    record, most = parts.record_sum, [0]

    def broken(name: str, count: int, *about: Any) -> None:
        most[0] = max(most[0], count)
        record(name, most[0], *about)

    parts.record_sum = broken
