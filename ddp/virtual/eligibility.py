"""Decides whether the ranks of a job can be trained in one vectorised operation, and why not."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
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
CLOSE = 0.02
"""Largest relative difference of the trial's gradients, which are rounded otherwise. Hooks that a forward pass registers on
tensors make a larger one."""
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
        "its parameters are of several types, or frozen": len({(p.dtype, p.requires_grad) for p in model.parameters()})
        > 1,
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
        return _hooked(model) or _unfit_pass(task, model, optimizer) or row_optimizer.unfit(optimizer)
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


def _unfit_pass(task: Task, model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Return what one training step does that a vectorised step cannot; trial passes show it: a plain one, and one of two
    ranks at once."""
    scalars, data, numbers = Scalars(), task.train_data(), others()
    if not repeatable(data):
        return "the data set gives batches, not rows"
    try:
        with fork_rng(), scalars:
            batch = data.batch(torch.arange(min(SAMPLES, len(data))))
            task.loss(model, batch).backward()  # type: ignore[no-untyped-call]
    except (Exception, SystemExit):
        return ""  # training will raise it again
    if any(p.grad is None for group in optimizer.param_groups for p in group["params"]):
        return "a parameter has no gradient, so that optimizers leave it alone"
    if scalars.recorded:
        return "a step calls record_scalar"
    if others() != numbers:
        return "a step draws random numbers of Python or NumPy"
    before = plain_state(model, task.loss)  # of a second step, as the first may prepare something
    parameters = {name: p.detach().expand(2, *p.shape) for name, p in model.named_parameters()}
    try:
        with fork_rng():
            loss, batches = loss_of(task, model), tuple(part.expand(2, *part.shape) for part in batch)
            (grads, _) = apart(loss)(parameters, batches)
            leaves = {name: p.detach().requires_grad_() for name, p in model.named_parameters()}
            means = torch.autograd.grad(shared(loss)(leaves, batches).mean(), list(leaves.values()))
    except (Exception, SystemExit) as error:
        return f"a step of several ranks at once fails ({f'{type(error).__name__}: {error}'.splitlines()[0]})"
    after = plain_state(model, task.loss)
    if changed := [path for path in before.keys() | after.keys() if before.get(path, path) != after.get(path, path)]:
        return f"a step changes the variable {'.'.join(min(changed)[1:])}"
    own = _flat(p.grad for p in model.parameters())
    for other in (_flat(grads[name][0] for name in leaves), _flat(means)):
        if (other - own).norm() > CLOSE * own.norm():
            return "its gradients are others in a step of several ranks at once"
    return ""


def _flat(gradients: Iterable[Tensor | None]) -> Tensor:
    return torch.cat([gradient.flatten() for gradient in gradients if gradient is not None])
