"""Checks before ranks start: a model can be built, and a user's own model can be trained for a step.

A mistake in a user's file is reported with file and line before the run starts. Changes nothing that a run depends on.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bench.config.plan import RunPlan
from bench.models import MODELS
from ddp.core.settings.loader import Loading
from ddp.data.batch_loader import refuse_samplewise
from ddp.registries import blamed, is_ours
from ddp.replica.memory.flat import FlatState
from ddp.replica.optim.optimizers import as_one, usable
from ddp.replica.scalars import Scalars
from ddp.replica.task import Task
from ddp.replica.trainable import SUMMED, is_sum


def checked_task(plan: RunPlan) -> Task:
    """Return the task of a plan after building its model once. Raise ValueError, in one line, if the model refuses its
    data or depth; Unusable for a mistake in its file."""
    name = plan.spec.model
    if MODELS.is_ours(name):
        with blamed("model", name, MODELS[name], ValueError):
            task = plan.job.task()
            task.model()
        return task
    with blamed("model", name, MODELS[name]):
        try:
            task = plan.job.task()
            try_step(task, plan.spec.batch_size, plan.job.loading)
        except ValueError as error:
            if not is_ours(error):
                raise
            refused = error
        else:
            return task
    raise refused


def try_step(task: Task, batch_size: int, loading: Loading) -> None:
    """Take one training step and evaluate once. Raise the exceptions of the user's code, TypeError for wrong return
    values, and ValueError for a task that cannot be trained here."""
    with torch.random.fork_rng(devices=[]):
        model, train, test = task.model(), task.train_data(), task.eval_data()
        if not isinstance(model, nn.Module):
            raise TypeError(f"the function that builds the model must return a torch.nn.Module, not {model!r:.60}")
        for source in (train, test):
            refuse_samplewise(loading, source)
        state = FlatState(model)
        optimizer = usable(as_one(task.optimizer(list(model.parameters()))), state)
        with Scalars():
            loss = task.loss(model, train.batch(torch.arange(min(batch_size, len(train)))))
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise TypeError("loss must return the mean loss of a batch, one number that the gradient is taken of")
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if is_sum(lambda indices: task.loss(model.eval(), train.batch(indices)), len(train)):
            raise ValueError(SUMMED)
        with torch.no_grad():
            sums = task.evaluate(model.eval(), test.batch(torch.arange(min(batch_size, len(test)))))
        if not isinstance(sums, tuple) or len(sums) != 2:
            raise TypeError("evaluate must return two sums over the batch: of the loss and of the metric")
