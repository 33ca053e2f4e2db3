"""Modules that are wrapped, and how tests train them."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor, nn

from ddp import DistributedDataParallel
from ddp.parallel.group import Group

STEPS, BATCH = 4, 6

seeding = threading.Lock()


def net(seed: int = 0, norm: bool = False) -> nn.Module:
    with seeding:
        torch.manual_seed(seed)
        return build(norm)


def build(norm: bool) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 40), *([nn.BatchNorm1d(40)] if norm else []), nn.Tanh(), nn.Linear(40, 3))


def batch(rank: int, step: int, size: int = BATCH) -> Tensor:
    return torch.randn(size, 5, generator=torch.Generator().manual_seed(100 * step + rank))


def loss(model: nn.Module, inputs: Tensor) -> Tensor:
    return torch.as_tensor(model(inputs).square().mean())


def values(model: nn.Module) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in model.state_dict().values()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def train(group: Group, clear: str = "before", model: nn.Module | None = None, **settings: Any) -> list[Tensor]:
    wrapped = DistributedDataParallel(model or net(seed=group.rank and 5), process_group=group, **settings)
    wrapped.sync_parameters()
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        if clear == "before":
            optimizer.zero_grad()
        found = loss(wrapped, batch(group.rank, step))
        if clear != "before":
            optimizer.zero_grad(set_to_none=clear == "between")
        found.backward()
        wrapped.sync_gradients()
        optimizer.step()
    return values(wrapped.module)


def other(**changes: Any) -> nn.Module:
    sizes = {"inner": 40, "dtype": torch.float32, "layers": 2} | changes
    layers = [nn.Linear(5, sizes["inner"]), nn.Linear(sizes["inner"], 3)][: sizes["layers"]]
    return nn.Sequential(*layers).to(sizes["dtype"])
