"""The cost of deciding, paid by cores that ranks would use."""

from __future__ import annotations

from typing import Any

import pytest

from ddp.core.policies import POLICIES
from ddp.core.world import World
from ddp.sim import Costs, simulate


@pytest.mark.parametrize("policy", POLICIES)
def test_coordinator_plays_a_run(benchmark: Any, policy: str) -> None:
    """About 3,000 events of 4 ranks, all of them through coordinator and workers."""
    world = World(4, 3000, 8, 2, blocking=False, in_step=False)
    played = benchmark(simulate, POLICIES[policy](), world, costs=Costs(lambda rank, step: 0.01))
    assert played.status == "ok"
