"""Ranks as threads of this process that step together: real collectives in milliseconds."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddp.comm.collectives import Collectives
from ddp.comm.heartbeat import Heartbeat
from ddp.comm.transports.base import TransportConfig as Place
from ddp.comm.transports.choice import choose
from ddp.core.messages.commands import Join
from ddp.core.samples.spans import Batch
from ddp.gradients.average import GradientAverage
from ddp.process.meter import Meter
from ddp.replica.memory.flat import FlatState
from ddp.sharding.zero1 import ShardContext
from tests.runtime.sharding.sharded_ranks import KINDS, slices
from tests.threads import in_threads

building = threading.Lock()


class Net(nn.Module):
    """A frozen layer, a norm, and a buffer that counts what only the data say."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.fixed, self.norm = nn.Linear(6, 80), nn.Linear(80, 8), nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 2)
        self.fixed.requires_grad_(False)
        self.register_buffer("positive", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(2, dtype=torch.bool))
        self.register_buffer("table", torch.arange(5))

    def forward(self, inputs: Tensor) -> Tensor:
        self.positive += (inputs[:, 0] > 0).sum()
        self.seen[int(inputs[0, 0] > 0)] = True
        hidden: Tensor = self.head(self.norm(self.fixed(self.body(inputs).tanh())))
        return hidden


class Rank:
    """One rank."""

    def __init__(self, folder: Path, rank: int, world: int, kind: str) -> None:
        self.rank, self.world = rank, world
        meter = self.meter = Meter(rank, folder, torch.device("cpu"))
        place = Place(folder, rank, world, torch.device("cpu"), 20.0)
        self.collectives = Collectives(choose("memory", place), meter, Heartbeat(math.inf, lambda: None))
        self.collectives.join(Join(rank, 0, tuple(range(world)), False, "test"))
        with building:
            torch.manual_seed(7)
            self.model: Any = Net()
        self.state = FlatState(self.model)
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.reduced = 0
        inner = self.collectives.all_reduce

        def counted(*args: Any) -> tuple[float, int]:
            self.reduced += 1
            return inner(*args)

        self.collectives.all_reduce = counted  # type: ignore[method-assign]
        if kind == "nccl_sync":
            self.team: Any = GradientAverage(self.model, self.state, self.collectives, meter, self.optimizer)
        else:
            self.site = ShardContext(self.model, self.state, self.optimizer, self.collectives, meter, world, rank)
            self.team = KINDS[kind](self.site)

    def step(
        self,
        number: int,
        before: Callable[[], None] = lambda: None,
        samples: int = 12,
        backwards: int = 1,
        inside: Callable[[Tensor], None] = lambda loss: None,
    ) -> None:
        """One step; `before` is what the user's function does before its forward pass, `inside` with its loss."""
        inputs = torch.randn(samples, 6, generator=torch.Generator().manual_seed(number))
        own = slices(self.world, samples)[self.rank]
        batch = Batch(0, own.start, own.stop, samples, samples < self.world)
        self.team.begin(batch)
        before()
        if batch.samples:
            if samples < self.world:
                self.model.norm.eval()  # a single sample has no statistics
            loss = self.team.module(inputs[own]).square().mean()
            inside(loss)
            self.team.backward()
            for further in reversed(range(backwards)):
                loss.backward(retain_graph=bool(further))
        self.team.exchange(batch)
        self.optimizer.step()
        self.team.end()

    def digest(self) -> str:
        with self.team.full_parameters() if hasattr(self.team, "full_parameters") else threading.Lock():
            return self.state.digest()


Act = Callable[[Rank], Any]


@pytest.fixture
def ranks(tmp_path: Path) -> Callable[..., list[Any]]:
    """What `act` returns on every rank, or the exception that it raises."""

    def run(kind: str, act: Act, world: int = 2) -> list[Any]:
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        folder.mkdir()

        def main(number: int) -> Any:
            rank = Rank(folder, number, world, kind)
            with closing(rank.collectives):
                return act(rank)

        return in_threads(world, main)

    return run
