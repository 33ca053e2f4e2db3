"""The oracle of graph mode: one model that replays every rank's batches one after the other, in one thread.

Plain autograd and plain sums: it shares no code with the engine. Buffers: every rank starts from those that all hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ddp.graph import FlowBuilder, Graph

WIDTH, CLASSES = 6, 3
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.1),
    "momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adamw": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.01),
}


def build(device: Any = "cpu", norm: bool = True, dropout: float = 0.0) -> Graph:
    flow = FlowBuilder.from_(nn.Linear(WIDTH, 12)).label("first")
    if norm:
        flow.through(nn.BatchNorm1d(12)).label("norm")
    flow.through(nn.Tanh()).tag("hidden")
    if dropout:
        flow.through(nn.Dropout(dropout))
    return flow.also(nn.Linear(12, 12)).through(nn.Linear(12, CLASSES)).tag("logits").build().to(device)


def made(seed: int = 0, **options: Any) -> Graph:
    torch.manual_seed(seed)
    return build(**options)


def data(samples: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, WIDTH, generator=generator)
    return inputs, (inputs[:, :3].sum(1) > 0).long() + (inputs[:, 3] > 1).long()


class Oracle:
    """Trains `model` on the batches of all ranks."""

    def __init__(self, model: nn.Module, optimizer: Callable[..., torch.optim.Optimizer]) -> None:
        self.model, self.optimizer = model, optimizer(list(model.parameters()))

    def step(self, work: Sequence[Sequence[tuple[Tensor, Tensor]]]) -> float:
        """One optimizer step on the batches of each rank; the mean loss over all samples."""
        model = self.model
        start = [buffer.clone() for buffer in model.buffers()]
        counts = [sum(len(x) for x, _ in mine) for mine in work]
        outputs: list[list[Tensor]] = []
        buffers: list[list[Tensor]] = []
        for mine in work:
            self._put(start)
            outputs.append([model(x) for x, _ in mine])
            buffers.append([buffer.clone() for buffer in model.buffers()])
        ends = torch.cat([out.detach() for mine in outputs for out in mine]).requires_grad_()
        targets = torch.cat([y for mine in work for _, y in mine])
        loss = F.cross_entropy(ends, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        total: list[Tensor] = []
        first = 0
        for mine in outputs:
            self.optimizer.zero_grad(set_to_none=True)
            for out in mine:
                out.backward(ends.grad[first : first + len(out)])  # type: ignore[no-untyped-call, index]
                first += len(out)
            if mine:
                own = [p.grad.clone() for p in model.parameters()]  # type: ignore[union-attr]
                total = own if not total else [a + b for a, b in zip(total, own, strict=True)]
        for parameter, gradient in zip(model.parameters(), total, strict=True):
            parameter.grad = gradient
        self._put(_mean(start, buffers, counts))
        self.optimizer.step()
        return loss.item()

    def _put(self, values: Sequence[Tensor]) -> None:
        """As new tensors: those that there are may be waiting for a backward pass."""
        names = [name for name, _ in self.model.named_buffers()]
        for name, value in zip(names, values, strict=True):
            owner, _, last = name.rpartition(".")
            self.model.get_submodule(owner)._buffers[last] = value.clone()


def _mean(start: list[Tensor], buffers: list[list[Tensor]], counts: list[int]) -> list[Tensor]:
    after = []
    for before, *theirs in zip(start, *buffers, strict=True):
        if len(theirs) == 1:  # one rank: nothing meets, and nothing is rounded
            after.append(theirs[0])
        elif not before.is_floating_point():
            after.append(torch.stack(theirs).amax(0))
        else:
            change = sum((value - before) * (n / sum(counts)) for value, n in zip(theirs, counts, strict=True))
            after.append(before + change)
    return after


def equal(graph: nn.Module, other: nn.Module) -> bool:
    """Parameters and buffers, bit for bit."""
    theirs = other.state_dict()
    return all(torch.equal(value, theirs[name]) for name, value in graph.state_dict().items())


def distance(graph: nn.Module, other: nn.Module) -> float:
    theirs = other.state_dict()
    return max(float((value - theirs[name]).abs().max()) for name, value in graph.state_dict().items())
