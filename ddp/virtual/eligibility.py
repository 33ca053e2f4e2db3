"""Decides whether the ranks of a job can be trained in one vectorised operation, and why not."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as hooks
from torch.random import fork_rng

from ddp.data.contents import repeatable
from ddp.data.seeded import others, set_others
from ddp.engine.own_tasks import OwnTasks
from ddp.replica.scalars import Scalars
from ddp.replica.task import Job, Task
from ddp.virtual import row_optimizer
from ddp.virtual.plain_state import plain_state
from ddp.virtual.rows import apart, loss_of, shared

SAMPLES = 2
"""Samples in the trial pass that shows what a step does; batch norm needs two."""
CLOSE, EXACT = 0.02, 1e-6
"""Largest relative difference of a parameter's gradients in the trial, which are rounded otherwise: in the precision of the
model, and in double precision."""
PART = 0.01
"""Part of the norm of all gradients below which those of a parameter are not compared with themselves alone."""
MANY = 16
"""Number of ranks from which on a vectorised operation is faster."""


def unfit(job: Job) -> str:
    """Return why the ranks of a job cannot be trained in one operation; empty: they can."""
    task, settings = OwnTasks(job)(), job.averaging
    model = task.model()
    reasons = {
        "train.accumulate, precision or compile is not plain": job.step.given
        and set(job.step.given) != {"deterministic"},
        "samples are augmented": task.augment is not None,
        "there is an epoch_callback": task.epoch_callback is not None,
        "the optimizers' state is averaged": settings.optimizer_state,
        f"averaging.wire={settings.wire} rounds": settings.wire != "float64",
        "the model has buffers": any(True for _ in model.buffers()),
        "its parameters are of several types": len({p.dtype for p in model.parameters()}) > 1,
        "some of its parameters are frozen": not all(p.requires_grad for p in model.parameters()),
    }
    for reason, holds in reasons.items():
        if holds:
            return reason
    optimizer = task.optimizer(list(model.parameters()))
    if not isinstance(optimizer, torch.optim.Optimizer):
        return "it has several optimizers"
    if sum(len(group["params"]) for group in optimizer.param_groups) != sum(1 for _ in model.parameters()):
        return "the optimizer lacks some of the parameters"
    numbers = others()
    try:
        passes = _unfit_pass(task, model, optimizer, job.batch_size)
        return _hooked(model) or passes or row_optimizer.unfit(optimizer)
    finally:
        set_others(numbers)


def _hooked(model: nn.Module) -> str:
    """Return which hook a vectorised backward pass would not call; empty: none."""
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            return f"{name} has a hook on its gradient"
    every = hooks._global_backward_hooks or hooks._global_backward_pre_hooks
    for name, module in model.named_modules():
        if every or module._backward_hooks or module._backward_pre_hooks:
            return f"{name or type(module).__name__} has a hook on its backward pass"
    return ""


def _unfit_pass(task: Task, model: nn.Module, optimizer: torch.optim.Optimizer, most: int) -> str:
    """Return what a training step does that a vectorised step cannot, with a few samples or with `most`; empty: nothing."""
    data = task.train_data()
    if not repeatable(data):
        return "the data set gives batches, not rows"
    tried = (_unfit_batch(task, model, optimizer, data, count) for count in sorted({min(SAMPLES, most), most}))
    return next(filter(None, tried), "")


def _unfit_batch(task: Task, model: nn.Module, optimizer: torch.optim.Optimizer, data: Any, count: int) -> str:
    """Return the same for `count` samples; trial passes show it: a plain one, and one of two ranks at once."""
    scalars, numbers, rates = Scalars(), others(), _rates(optimizer)
    kept = [p.detach().clone() for p in model.parameters()]
    model.zero_grad()
    try:
        with fork_rng(), scalars:
            batch = data.batch(torch.arange(count))
            task.loss(model, batch).backward()  # type: ignore[no-untyped-call]
    except (Exception, SystemExit) as error:
        return f"a step fails ({_short(error)})"
    if any(p.grad is None for group in optimizer.param_groups for p in group["params"]):
        return "a parameter has no gradient, so that optimizers leave it alone"
    if scalars.recorded:
        return "a step calls record_scalar"
    if others() != numbers:
        return "a step draws random numbers of Python or NumPy"
    if rates != _rates(optimizer) or not all(map(torch.equal, kept, model.parameters())):
        return "the loss changes parameters or learning rates"
    before = plain_state(model, task.loss)  # of a second step, as the first may prepare something
    try:
        with fork_rng():
            strange = _differs(task, model, batch) or _differs_exactly(task, model, batch)
    except (Exception, SystemExit) as error:
        return f"a step of several ranks at once fails ({_short(error)})"
    after = plain_state(model, task.loss)
    if changed := [path for path in before.keys() | after.keys() if before.get(path, path) != after.get(path, path)]:
        return f"a step changes the variable {'.'.join(min(changed)[1:])}"
    return "its gradients are others in a step of several ranks at once" if strange else ""


def _rates(optimizer: torch.optim.Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _differs_exactly(task: Task, model: nn.Module, batch: Any) -> bool:
    """Return whether a copy of the model in double precision has other gradients; also where its parameters are not those
    that it began with: layers that begin at 0 hide what is behind them. A copy that fails shows nothing."""
    try:
        twin = deepcopy(model).double()
        exact = tuple(part.double() if part.is_floating_point() else part for part in batch)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.add_(0.01 * torch.randn_like(parameter))
        return _differs(task, twin, exact)
    except (Exception, SystemExit):
        return False


def _differs(task: Task, model: nn.Module, batch: Any) -> bool:
    """Return whether the gradients of several ranks at once are not those of a plain pass."""
    model.zero_grad()
    task.loss(model, batch).backward()  # type: ignore[no-untyped-call]
    own = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    parameters = {name: p.detach().expand(2, *p.shape) for name, p in model.named_parameters()}
    loss, batches = loss_of(task, model), tuple(part.expand(2, *part.shape) for part in batch)
    (grads, _) = apart(loss)(parameters, batches)
    leaves = {name: p.detach().requires_grad_() for name, p in model.named_parameters()}
    means = torch.autograd.grad(shared(loss)(leaves, batches).mean(), list(leaves.values()))
    whole = torch.stack([gradient.norm() for gradient in own.values()]).norm()
    close = EXACT if whole.dtype == torch.float64 else CLOSE
    together = dict(zip(leaves, means, strict=True))
    pairs = [(other, mine) for name, mine in own.items() for other in (grads[name][0], together[name])]
    return any(bool((other - mine).norm() > close * (mine.norm() + PART * whole)) for other, mine in pairs)
