"""Training loops as people write them for torch's DistributedDataParallel, to be run under torch's and under ours.

A program gets its rank, what wraps a model, and a log for what it sees: gradients, parameters and buffers after each step.
Those here train one small network; `programs` has those with models of their own, and the list of all.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

Wrap = Callable[..., Any]
STEPS = 3


class Log:
    """What a program saw, in order."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Tensor | None]] = []
        self.error = ""

    def model(self, wrapped: nn.Module) -> None:
        """Everything that a model holds."""
        inner: Any = wrapped.module
        for name, parameter in inner.named_parameters():
            grad = parameter.grad
            dense = grad.to_dense() if grad is not None and grad.is_sparse else grad
            self.value(f"gradient of {name}", dense)
            self.value(f"parameter {name}", parameter)
        for name, buffer in inner.named_buffers():
            self.value(f"buffer {name}", buffer)

    def value(self, name: str, tensor: Tensor | None) -> None:
        self.seen.append((name, None if tensor is None else tensor.detach().clone()))


Program = Callable[[int, Wrap, Log], None]


def net(norm: bool = False) -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 8), *([nn.BatchNorm1d(8)] if norm else []), nn.Tanh(), nn.Linear(8, 3))


def norm_net() -> nn.Module:
    return net(norm=True)


def batch(rank: int, step: int) -> Tensor:
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(100 * step + rank))


def loss(out: Tensor) -> Tensor:
    return out.square().mean()


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def plain(
    rank: int,
    wrap: Wrap,
    log: Log,
    *,
    make: Callable[[], nn.Module] = net,
    to_none: bool = True,
    autocast: bool = False,
    **settings: Any,
) -> None:
    """What every loop does, with this model and these settings of the wrapper."""
    model = wrap(make(), **settings)
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=to_none)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            found = loss(model(batch(rank, step)))
        found.backward()
        optimizer.step()
        log.model(model)


def without_clearing(rank: int, wrap: Wrap, log: Log) -> None:
    model = wrap(net())
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        loss(model(batch(rank, step))).backward()
        optimizer.step()
        log.model(model)


def clipped(rank: int, wrap: Wrap, log: Log) -> None:
    model = wrap(net())
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(model(batch(rank, step))).backward()
        log.value("norm", nn.utils.clip_grad_norm_(model.parameters(), 0.01))
        optimizer.step()
        log.model(model)


def held(model: Any, hold: bool) -> AbstractContextManager[None]:
    context: AbstractContextManager[None] = model.no_sync() if hold else nullcontext()
    return context


def accumulation(rank: int, wrap: Wrap, log: Log, *, forward: bool, backward: bool, norm: bool = False) -> None:
    """Two batches for each step, of which the first one's passes are inside `no_sync()` or outside."""
    model = wrap(net(norm))
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        with held(model, forward):
            out = model(batch(rank, 2 * step))
        with held(model, backward):
            loss(out).backward()
        log.model(model)
        loss(model(batch(rank, 2 * step + 1))).backward()
        optimizer.step()
        log.model(model)


def one_context(rank: int, wrap: Wrap, log: Log, *, norm: bool = False) -> None:
    """As torch's documents have it: all but the last batch of a step in one `no_sync()`."""
    model = wrap(net(norm))
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        with model.no_sync():
            for part in range(2):
                loss(model(batch(rank, 3 * step + part))).backward()
                log.model(model)
        loss(model(batch(rank, 3 * step + 2))).backward()
        optimizer.step()
        log.model(model)


def by_attribute(rank: int, wrap: Wrap, log: Log) -> None:
    """Accumulation as some write it who want no context."""
    model = wrap(net(norm=True))
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(3):
            model.require_backward_grad_sync = part == 2
            loss(model(batch(rank, 3 * step + part))).backward()
            log.model(model)
        optimizer.step()
        log.model(model)


def forward_inside_after_one_outside(rank: int, wrap: Wrap, log: Log) -> None:
    """Torch sends in the first backward pass after a forward pass outside, whichever that was."""
    model = wrap(net(norm=True))
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        first = model(batch(rank, 2 * step))
        with model.no_sync():
            second = model(batch(rank, 2 * step + 1))
        (loss(first) + loss(second)).backward()
        log.model(model)
        optimizer.step()


def forwards_on_both_sides(rank: int, wrap: Wrap, log: Log) -> None:
    model = wrap(net())
    for step in range(STEPS):
        model.zero_grad()
        with model.no_sync():
            first = model(batch(rank, 2 * step))
        second = model(batch(rank, 2 * step + 1))
        (loss(first) + loss(second)).backward()
        log.model(model)


def local_before(rank: int, wrap: Wrap, log: Log) -> None:
    """Forward inside and backward outside leaves gradients on each rank; the next step sends them too."""
    model = wrap(net())
    for step in range(STEPS):
        with model.no_sync():
            out = model(batch(rank, 2 * step))
        loss(out).backward()
        log.model(model)
    loss(model(batch(rank, 9))).backward()
    log.model(model)


def several_forwards(rank: int, wrap: Wrap, log: Log, *, norm: bool = False) -> None:
    model = wrap(net(norm))
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        torch.stack([loss(model(batch(rank, 3 * step + part))) for part in range(3)]).sum().backward()
        optimizer.step()
        log.model(model)


def second_pass_inside(rank: int, wrap: Wrap, log: Log) -> None:
    """Over one graph: what was sent, and then a gradient of this rank alone; the next step sends both."""
    model = wrap(net())
    for step in range(STEPS):
        found = loss(model(batch(rank, step)))
        found.backward(retain_graph=True)
        log.model(model)
        with model.no_sync():
            found.backward()
        log.model(model)


def frozen_meanwhile(rank: int, wrap: Wrap, log: Log) -> None:
    model = wrap(net(), find_unused_parameters=True)
    optimizer = optimizer_of(model)
    for step in range(4):
        model.module[0].requires_grad_(step not in (1, 2))
        optimizer.zero_grad()
        loss(model(batch(rank, step))).backward()
        optimizer.step()
        log.model(model)


def evaluated(rank: int, wrap: Wrap, log: Log, *, train_mode: bool, without: Any = torch.no_grad) -> None:
    """Forward passes without gradients between steps."""
    model = wrap(net(norm=True))
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(model(batch(rank, 3 * step))).backward()
        optimizer.step()
        model.train(train_mode)
        with without():
            for part in (1, 2):
                log.value("evaluated", model(batch(rank, 3 * step + part)))
                log.model(model)
        model.train()
        log.model(model)


def with_gradients_in_eval_mode(rank: int, wrap: Wrap, log: Log) -> None:
    """Statistics frozen, weights trained on."""
    model = wrap(net(norm=True))
    optimizer = optimizer_of(model)
    for step in range(2 * STEPS):
        model.train(step < 2)
        optimizer.zero_grad()
        loss(model(batch(rank, step))).backward()
        optimizer.step()
        log.model(model)


def first_without_gradients(rank: int, wrap: Wrap, log: Log) -> None:
    model = wrap(net(norm=True))
    with torch.no_grad():
        model(batch(rank, 9))
    log.model(model)
    for step in range(STEPS):
        loss(model(batch(rank, step))).backward()
        log.model(model)


def kept_reference(rank: int, wrap: Wrap, log: Log) -> None:
    """A gradient that somebody holds on to over the next step."""
    model = wrap(net())
    before: Tensor | None = None
    for step in range(STEPS):
        model.zero_grad(set_to_none=False)
        loss(model(batch(rank, step))).backward()
        log.value("held", before)
        before = model.module[0].weight.grad
        log.model(model)


def two_losses(rank: int, wrap: Wrap, log: Log) -> None:
    """Two passes, for a loss each, over one graph."""
    model = wrap(net())
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        out = model(batch(rank, step))
        loss(out).backward(retain_graph=True)
        out.abs().sum().backward()
        log.model(model)
        optimizer.step()


def forwards_then_passes(rank: int, wrap: Wrap, log: Log) -> None:
    """A pass for each of two forward passes, which came first."""
    model = wrap(net())
    for step in range(STEPS):
        model.zero_grad()
        outs = [model(batch(rank, 2 * step + part)) for part in range(2)]
        for out in outs:
            loss(out).backward()
        log.model(model)
