"""Which jobs can be trained many ranks at once, and why others cannot."""

from __future__ import annotations

import torch
from torch import nn

from ddp.replica.task import Job
from ddp.virtual import row_optimizer

MANY = 16
"""Ranks from which on one operation for all is worth it."""


def unfit(job: Job) -> str:
    """Return why the ranks of a job cannot be trained in one operation; empty: they can."""
    task, settings = job.task(), job.averaging
    model = task.model()
    reasons = {
        "train.accumulate, precision or compile is not plain": job.step.given
        and set(job.step.given) != {"deterministic"},
        "samples are augmented": task.augment is not None,
        "there is an epoch_callback": task.epoch_callback is not None,
        "the optimizers' state is averaged": settings.optimizer_state,
        f"averaging.wire={settings.wire} rounds": settings.wire != "float64",
        "the model has buffers": any(True for _ in model.buffers()),
        "its parameters are of several types, or frozen": len({(p.dtype, p.requires_grad) for p in model.parameters()})
        > 1,
        "the model draws random numbers": any(isinstance(m, nn.modules.dropout._DropoutNd) for m in model.modules()),
    }
    for reason, holds in reasons.items():
        if holds:
            return reason
    optimizer = task.optimizer(list(model.parameters()))
    if not isinstance(optimizer, torch.optim.Optimizer):
        return "it has several optimizers"
    return row_optimizer.unfit(optimizer)
