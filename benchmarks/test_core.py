"""The cost of deciding and of averaging: both are paid by cores that ranks would use."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ddp.core.policies import POLICIES
from ddp.core.world import World
from ddp.runtime.backends.cpu import average
from ddp.sim import Costs, simulate


@pytest.mark.parametrize("policy", POLICIES)
def test_coordinator_plays_a_run(benchmark: Any, policy: str) -> None:
    """About 3,000 events of 4 ranks, all of them through coordinator and workers."""
    world = World(4, 3000, 8, 2, blocking=False, in_step=False)
    played = benchmark(simulate, POLICIES[policy](), world, costs=Costs(lambda rank, step: 0.01))
    assert played.status == "ok"


@pytest.mark.parametrize("elements", [19_210, 269_722, 10_000_000])
def test_averaging_two_snapshots(benchmark: Any, elements: int) -> None:
    torch.set_num_threads(1)
    replicas = [torch.randn(elements) for _ in range(2)]
    benchmark(average, torch.empty(elements), replicas, (25, 10))


@pytest.mark.parametrize("elements", [19_210, 269_722, 10_000_000])
def test_copying_as_much_memory(benchmark: Any, elements: int) -> None:
    """What averaging is held against."""
    torch.set_num_threads(1)
    source, target = torch.randn(elements), torch.empty(elements)
    benchmark(target.copy_, source)
