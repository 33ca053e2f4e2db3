"""How often chance passes the bound that a row of figures is held against."""

from __future__ import annotations

import random

import pytest

from ddp.core.anomalies.outliers import Scatter


def passes(scatter: float, alike: float, change: float, seed: int, rows: int = 4000) -> int:
    """Return how many rows of two are found beyond chance, of figures that are `change` more than those before."""
    dice, figure, found, seen = random.Random(seed), 0.0, 0, Scatter()
    for step in range(100 + 3 * rows):
        figure = alike * figure + dice.gauss(0.0, scatter * (1 - alike**2) ** 0.5)
        row = (step - 100) % 3 if step >= 100 else 0
        found += seen.enter(figure + (change if row else 0.0), row) and row == 2
        if row == 2:
            seen.forget()
    return found


@pytest.mark.parametrize("scatter", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("alike", [0.0, 0.5, 0.8])
def test_chance_alone_does_not_pass(scatter: float, alike: float) -> None:
    assert passes(scatter, alike, 0.0, seed=1) == 0


@pytest.mark.parametrize("scatter", [0.01, 0.05])
def test_a_change_of_several_times_the_scatter_does(scatter: float) -> None:
    assert passes(scatter, 0.0, 0.4, seed=2, rows=400) == 400


def test_what_is_over_before_it_is_clear_counts_as_chance() -> None:
    calm, shaken = Scatter(), Scatter()
    for _ in range(20):
        for scatter, figure in ((calm, 0.0), (shaken, 0.3)):
            scatter.enter(figure, 1)
            scatter.enter(0.0, 0)
            scatter.enter(0.0, 0)
    assert calm.enter(0.3, 1)
    assert not shaken.enter(0.3, 1)
