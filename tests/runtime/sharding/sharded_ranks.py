"""Ranks that shard without a coordinator, and what one process makes of the same batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.tensor_memory import TensorWatch, kinds
from ddp.comm.collectives import Collectives
from ddp.comm.heartbeat import Heartbeat
from ddp.comm.transports.base import TransportConfig as Place
from ddp.comm.transports.choice import choose
from ddp.core.messages.commands import Join
from ddp.core.samples.spans import Batch
from ddp.process.meter import Meter
from ddp.replica.memory.flat import FlatState
from ddp.sharding.zero1 import ShardContext, Zero, Zero1
from ddp.sharding.zero2 import Zero2
from ddp.sharding.zero3 import Zero3
from tests.processes import exit_codes

KINDS: dict[str, Callable[[ShardContext], Any]] = {"zero1": Zero1, "zero2": Zero2, "zero3": Zero3}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": partial(torch.optim.SGD, lr=0.1),
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
    "AdamW": partial(torch.optim.AdamW, lr=0.01),
    "Adagrad": partial(torch.optim.Adagrad, lr=0.1),
}
BATCH = 24


def deep(width: int = 40, layers: int = 4) -> nn.Module:
    torch.manual_seed(7)
    inner = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU(inplace=True))]
    return nn.Sequential(nn.Linear(6, width), nn.Tanh(), *inner, nn.Linear(width, 2))


class Attentive(nn.Module):
    """Uses parameters of a child without calling it, one layer twice, shares a weight, has one that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.attend = nn.MultiheadAttention(12, 3, batch_first=True)
        self.embed, self.twice, self.back = nn.Linear(2, 12), nn.Linear(12, 12), nn.Linear(12, 12, bias=False)
        self.back.weight = self.twice.weight
        self.fixed, self.head = nn.Linear(12, 12), nn.Linear(36, 2)
        self.scale, self.unused = nn.Parameter(torch.ones(12)), nn.Parameter(torch.ones(5))
        self.fixed.requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.embed(inputs.view(-1, 3, 2)) * self.scale
        hidden = hidden + self.attend(hidden, hidden, hidden, need_weights=False)[0]
        hidden = self.fixed(self.back(self.twice(self.twice(hidden).relu()).relu()))
        return self.head(hidden.flatten(1))


MODELS: dict[str, Callable[[], nn.Module]] = {"deep": deep, "attentive": Attentive, "wide": partial(deep, 128, 8)}


def batch(step: int, samples: int = BATCH) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(step)
    return torch.randn(samples, 6, generator=draw), torch.randint(0, 2, (samples,), generator=draw)


def slices(world_size: int, samples: int) -> list[slice]:
    return [slice(samples * k // world_size, samples * (k + 1) // world_size) for k in range(world_size)]


class Team:
    """One rank."""

    def __init__(self, folder: Path, rank: int, world_size: int, kind: str, transport: str, **how: Any) -> None:
        torch.set_num_threads(1)
        device = torch.device("cpu")
        self.meter = Meter(rank, folder, device)
        place = Place(folder, rank, world_size, device, 20.0)
        self.collectives = Collectives(choose(transport, place), self.meter, Heartbeat(math.inf, lambda: None))
        self.collectives.join(Join(0, 0, tuple(range(world_size)), False, "test"))
        self.model = how.get("build") or MODELS[how.get("model", "deep")]()
        self.state = FlatState(self.model)
        self.optimizer = OPTIMIZERS[how.get("optimizer", "AdamW")](self.model.parameters())
        self.rank, self.world_size = rank, world_size
        site = ShardContext(self.model, self.state, self.optimizer, self.collectives, self.meter, world_size, rank)
        self.sharded: Zero = KINDS[kind](site)

    def step(self, number: int, samples: int = BATCH, limit: float | None = None, penalty: float = 0.0) -> None:
        inputs, targets = batch(number, samples)
        own = slices(self.world_size, samples)[self.rank]
        part = Batch(0, own.start, own.stop, samples, samples < self.world_size)
        self.sharded.begin(part)
        if own.start < own.stop:
            loss = nn.functional.cross_entropy(self.sharded.module(inputs[own]), targets[own])
            if penalty:
                loss = loss + penalty * torch.stack([p.square().sum() for p in self.model.parameters()]).sum()
            self.sharded.backward()
            loss.backward()
        else:
            self.sharded.idle(part)
        self.sharded.exchange(part)
        if limit is not None:
            self.sharded.clip(limit)
        self.optimizer.step()
        self.sharded.end()

    def watch(self) -> TensorWatch:
        return TensorWatch(lambda: kinds(self.model, self.optimizer, self.sharded))


def alone(model: str, optimizer: str, world_size: int, steps: int, samples: int = BATCH) -> dict[str, Tensor]:
    """Every rank's micro-batches one after the other, weighted, with sums in the order of ranks."""
    torch.set_num_threads(1)
    built = MODELS[model]()
    moved = OPTIMIZERS[optimizer](built.parameters())
    for number in range(steps):
        inputs, targets = batch(number, samples)
        total: list[Tensor | None] = [None for _ in built.parameters()]
        for own in slices(world_size, samples):
            moved.zero_grad()
            if own.start == own.stop:
                continue
            nn.functional.cross_entropy(built(inputs[own]), targets[own]).backward()
            for k, p in enumerate(built.parameters()):
                if p.grad is not None:
                    part = p.grad * ((own.stop - own.start) / samples)
                    before = total[k]
                    total[k] = part if before is None else before + part
        for p, gradient in zip(built.parameters(), total, strict=True):
            p.grad = gradient
        moved.step()
    return built.state_dict()


def together(act: Callable[..., None], folder: Path, world_size: int, *more: object) -> list[Any]:
    """What ranks return that run `act(folder, rank, world_size, *more)`."""
    ranks = [(act, folder, rank, world_size, *more) for rank in range(world_size)]
    assert exit_codes(_act, ranks) == [0] * world_size
    return [torch.load(folder / f"result-{rank}.pt", weights_only=False) for rank in range(world_size)]


def _act(act: Callable[..., Any], folder: Path, rank: int, world_size: int, *more: object) -> None:
    torch.save(act(folder, rank, world_size, *more), folder / f"result-{rank}.pt")
