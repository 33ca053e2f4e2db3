"""Compares the ranks' slices with the whole batch on one device, and says why they differ."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from bench.prove.entrants import distance, entrant, gap
from bench.prove.oracle import OracleCourse, PlainTrainer, replay, whole_batches
from bench.prove.tasks import Make, least, plain
from ddp.core.settings.steps import PLAIN, StepSettings
from ddp.replica.scalars import Scalars

MOST = 1e-3
"""Largest difference of gradients that rounding explains."""


@dataclass(frozen=True)
class WholeBatch:
    """How far the oracle is from the whole batch on one device."""

    ranks: int
    gradients: float
    parameters: float
    loss: float
    why: str


def whole(make: Make, size: int, steps: int, batch: int, seed: int = 5, how: StepSettings = PLAIN) -> WholeBatch:
    """Compare training by the ranks' slices with training by whole batches on one device. Both are equal up to
    rounding, unless the model looks at its batch as a whole or draws random numbers."""
    course = OracleCourse(plain(make), size, batch * how.accumulate, steps, seed=seed, least=least(make), how=how)
    rule = entrant("nccl").rule
    gradients = parameters = loss = 0.0
    for ours, theirs in zip(replay(course, rule), whole_batches(course), strict=True):
        pairs = zip(ours.gradients, theirs.gradients, strict=True)
        gaps = [gap(a, b) for a, b in pairs if a is not None and b is not None and a.numel()]
        gradients, loss = max([gradients, *gaps]), max(loss, gap(ours.loss, theirs.loss))
        parameters = max(parameters, distance(ours.state, theirs.state))
    return WholeBatch(size, gradients, parameters, loss, _reason(course, gradients))


def _reason(course: OracleCourse, gradients: float) -> str:
    """Return why slices and the whole batch differ."""
    trainer = PlainTrainer(course, flat=False)
    if any(isinstance(module, nn.modules.batchnorm._NormBase) for module in trainer.model.modules()):
        return "batch norm: each rank, and each micro-batch, has the statistics of its own samples"
    batch = trainer.data.batch(torch.arange(course.batch))
    with Scalars():  # with gradients, as tasks may need them
        losses = set()
        for seed in (0, 1):
            torch.manual_seed(seed)
            losses.add(trainer.task.loss(trainer.model, batch).item())
    if len(losses) > 1:
        return "random numbers, such as dropout's: each rank draws its own"
    if course.how.half:
        return "half precision: products are rounded to 8 bits, in other batches"
    if gradients > MOST:
        return "more than rounding: the loss is no mean over the samples of a batch"
    return "rounding: sums in another order"
