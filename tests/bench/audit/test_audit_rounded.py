"""The audit of what an average makes: parameters that were rounded to the bits of a narrow wire."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.audit.kept_files import OPTIMIZER, PARAMETERS, Name, Part
from bench.audit.repeated.between import rounded
from bench.audit.repeated.compare import states_apart
from bench.audit.repeated.repeated_step import Done


@pytest.mark.parametrize("coarse", [False, True])
def test_parameters_that_are_exact_in_fewer_bits_are_named(coarse: bool) -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    values = values.bfloat16().float() if coarse else values
    parts = {Name(PARAMETERS, "0.weight"): [Part(torch.cat([values, torch.zeros(1000)]), "", 0, 1, (2000,))]}
    order: Any = SimpleNamespace(model="mlp")
    (item,) = rounded(order, {0: parts})
    assert (item.outcome == "different") is coarse
    assert ("1000 of 1000 final parameters" in item.line) is coarse


@pytest.mark.parametrize(("by", "apart"), [(1e-6, 0), (0.1, 1)])
def test_infinities_do_not_take_the_allowance_of_other_values(by: float, apart: int) -> None:
    """After a flipped bit squared gradients were infinite: any rounding of the others was a difference of 0 from 0."""
    name = Name(OPTIMIZER, "0.weight", "exp_avg_sq")
    before, after = torch.ones(100), torch.full((100,), 2.0)
    before[0] = after[0] = torch.inf
    own, shaken = Done([], after={name: after}), Done([], after={name: after * (1 + 1e-6)})
    engine = {name: [Part(after * (1 + by), "", 0, 1, (100,))]}
    differences, _ = states_apart(engine, {name: before}, own, shaken, 0.0)
    assert len(differences) == apart
