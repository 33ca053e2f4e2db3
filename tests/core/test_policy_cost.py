"""What a policy computes for an average grows with the number of ranks, not with its square. Calls are counted, no time."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from ddp.core.messages.events import RoundClosed
from ddp.core.policies import POLICIES
from ddp.core.settings.world import World

SIZES = 64, 512


def calls(name: str, blocking: bool, size: int) -> int:
    """Return the function calls, each step of a generator among them, of a run whose windows grow, a rank lost for each."""
    world = World(size, 2000 * size, 1, epochs=9, blocking=blocking, in_step=name == "sync")
    policy = POLICIES[name]()
    state, plan = policy.init(world)
    count = 0

    def called(frame: Any, what: str, argument: Any) -> None:
        nonlocal count
        count += what in ("call", "c_call")

    for index in range(12):
        lost = tuple(range(size // 64 * index))
        counts = tuple(0 if rank in set(lost) else n for rank, n in enumerate(plan.counts))
        busy = tuple(0.001 * (1 + rank % 3) * n for rank, n in enumerate(counts))
        figures: tuple[Any, ...] = (counts, busy, 0.02, (0.0,) * size, (1e-4,) * size, (True,) * size, lost)
        event = RoundClosed(float(index), index, *figures, lr=0.1, samples=100 * index, loss=1.0, spread=0.1)
        sys.setprofile(called)
        try:
            state, outputs = policy.update(state, event)
        finally:
            sys.setprofile(None)
        plan = next((each for each in outputs if isinstance(each, type(plan))), plan)
    return count


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("name", POLICIES)
def test_the_cost_of_an_average_is_no_square_of_the_ranks(name: str, blocking: bool) -> None:
    """`async` searched all ranks for the shortest window once for each rank: eight minutes at 65,536."""
    few, many = (calls(name, blocking, size) for size in SIZES)
    assert many <= 1.5 * SIZES[1] / SIZES[0] * max(few, 1)
