"""The end of training: a division of the rest that serves several decisions breaks no law, and costs less."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddp.core.grants import ending
from ddp.core.policies import POLICIES
from ddp.core.settings.world import World
from ddp.sim import Costs, Simulation
from tests.sim.strategies import costs, examples, scripts, second_blows, small_worlds
from tests.sim.test_faults import SLOW, play
from tests.sim.test_laws import covered_once


def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often the rest is divided, and how often a division serves."""
    counts = {"_divided": 0, "_use": 0}
    for name in counts:
        real = getattr(ending, name)

        def counting(*arguments: Any, name: str = name, real: Any = real) -> Any:
            counts[name] += 1
            return real(*arguments)

        monkeypatch.setattr(ending, name, counting)
    return counts


def test_a_division_that_serves_many_decisions_breaks_no_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with many ranks, on few: whoever is lost, comes back, or has its part already."""
    monkeypatch.setattr(ending, "EACH", 1)
    counts = counted(monkeypatch)

    @settings(max_examples=examples(250), deadline=None, suppress_health_check=SLOW)
    @given(st.integers(1, 3), small_worlds(blocking=False, in_step=False, restarts=None), costs(), st.data())
    def schedules(anchor: int, world: World, cost: Costs, data: st.DataObject) -> None:
        policy, script = POLICIES["async"](anchor=anchor, max_anchor=3, max_overshoot=2), data.draw(scripts(world))
        play(policy, world, cost, script, data.draw(second_blows(world, script)), 0)

    schedules()
    assert counts["_use"] >= counts["_divided"] + 20, counts


@pytest.mark.parametrize("size", [96, 200])
def test_the_rest_is_divided_for_many_decisions_at_once(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the last events divided the rest among all ranks, which cost the square of their number."""
    runs = []
    for each in (ending.EACH, 10**9):
        monkeypatch.setattr(ending, "EACH", each)
        counts = counted(monkeypatch)
        world = World(size, 24 * size, 1, 1, blocking=False, in_step=False)
        cost = Costs(lambda rank, step: 1.0 + 0.013 * (rank % 29) + 0.0007 * (step * 31 + rank % 17))
        played = Simulation(POLICIES["async"](anchor=2, max_anchor=2), world, cost).run()
        monkeypatch.undo()
        covered_once(played)
        runs.append((counts, played.now))
    (some, ended), (every, exact) = runs
    assert every["_divided"] == every["_use"] > size
    assert some["_divided"] <= (every["_divided"] if size < 128 else every["_divided"] // 2)
    assert abs(ended - exact) <= 1.0, "it ends within a step of the end with a division for each decision"
