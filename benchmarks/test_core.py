"""The cost of the core's decisions, which take processor time from ranks."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.deciding import simulation
from ddp.core.policies import POLICIES
from ddp.core.settings.world import World
from ddp.sim import Costs, simulate


@pytest.mark.parametrize("policy", POLICIES)
def test_coordinator_plays_a_run(benchmark: Any, policy: str) -> None:
    """About 3,000 events of 4 ranks, all of them through coordinator and workers."""
    world = World(4, 3000, 8, 2, blocking=False, in_step=False)
    played = benchmark(simulate, POLICIES[policy](), world, costs=Costs(lambda rank, step: 0.01))
    assert played.status == "ok"


@pytest.mark.parametrize("ranks", [8, 256, 4096])
@pytest.mark.parametrize("policy", ["sync", "cadence", "async"])
def test_rounds_of_many_ranks(benchmark: Any, policy: str, ranks: int) -> None:
    """Four rounds; what an event costs is not to grow with the ranks. `python -m benchmarks.deciding` has it as a table."""
    played = benchmark.pedantic(lambda: simulation(policy, ranks, 4).run(), rounds=1)
    assert played.status == "ok"
    benchmark.extra_info["events"] = played.events
