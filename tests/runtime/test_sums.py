"""What ranks record of a model's state tells states apart, and averages as the state does."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from ddp.replica.flat import FlatState
from ddp.replica.state_sums import FIRST, due, sums, sums_of


def test_parameters_and_buffers_have_sums_of_their_own() -> None:
    model = nn.BatchNorm1d(4)
    state = FlatState(model)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([1.0, -2.0, 3.0, 4.0]))
        model.running_mean.fill_(-1.0)  # type: ignore[union-attr]
    assert sums(state.sections) == (6.0, 10.0, 0.0, 8.0)
    with torch.no_grad():
        model.weight[0] = float("nan")
    assert sums(state.sections) == (None, None, 0.0, 8.0)


@pytest.mark.parametrize("features", [10, 300_000])
def test_sums_are_linear_in_large_models_too(features: int) -> None:
    torch.manual_seed(1)
    states = [FlatState(nn.Linear(features, 1)) for _ in range(3)]
    one, other, mean = (state.sections[0].values for state in states)
    mean.copy_(0.25 * one + 0.75 * other)
    (a, size, *_), (b, *_), (m, *_) = (sums(state.sections) for state in states)
    assert None not in (a, b, m, size)
    assert m == pytest.approx(0.25 * a + 0.75 * b, abs=1e-7 * size)
    assert abs(a - b) > 1e-4 * size


def test_rounds_beyond_the_first_are_looked_at_now_and_then() -> None:
    assert all(due(round) for round in range(FIRST))
    later = [round for round in range(FIRST, 10 * FIRST) if due(round)]
    assert 0 < len(later) <= 0.1 * 9 * FIRST
    assert all(round + 1 in later for round in later[::2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_sums_are_exact_and_leave_the_values_alone(dtype: torch.dtype) -> None:
    """Sums in single precision were twice as far off as an average may be, and sound runs failed."""
    values = torch.randn(100_003, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).to(dtype)
    before = values.clone()
    found = sums_of([values], [])
    assert torch.equal(values, before)
    exact = values.tolist()
    assert found[0] == pytest.approx(math.fsum(exact), abs=1e-9)
    assert found[1] == pytest.approx(math.fsum(map(abs, exact)), abs=1e-9)
