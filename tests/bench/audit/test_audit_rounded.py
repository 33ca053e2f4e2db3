"""The audit of what an average makes: parameters that were rounded to the bits of a narrow wire."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.audit.kept_files import PARAMETERS, Name, Part
from bench.audit.repeated.between import rounded


@pytest.mark.parametrize("coarse", [False, True])
def test_parameters_that_are_exact_in_fewer_bits_are_named(coarse: bool) -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    values = values.bfloat16().float() if coarse else values
    parts = {Name(PARAMETERS, "0.weight"): [Part(torch.cat([values, torch.zeros(1000)]), "", 0, 1, (2000,))]}
    order: Any = SimpleNamespace(model="mlp")
    (item,) = rounded(order, {0: parts})
    assert (item.outcome == "different") is coarse
    assert ("1000 of 1000 final parameters" in item.line) is coarse
