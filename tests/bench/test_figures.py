"""How metrics are written: what is small keeps its digits."""

from __future__ import annotations

import math

import pytest

from bench.figures import metric


@pytest.mark.parametrize(
    ("value", "beside", "text"),
    [
        (0.9897123, None, "0.9897"),
        (2.71, None, "2.7100"),
        (0.00008044, None, "0.0000804"),
        (-0.0000051, 0.00045, "-0.000005"),
        (-0.0000001, 0.00045, "0.000000"),
        (-0.00001, 0.98, "0.0000"),
        (0.002, 0.98, "0.0020"),
        (0.0, None, "0.0000"),
        (1e-300, None, "0.000000000000"),
        (math.nan, None, "nan"),
        (math.inf, None, "inf"),
        (None, None, "-"),
    ],
)
def test_metric(value: float | None, beside: float | None, text: str) -> None:
    assert metric(value, beside) == text
