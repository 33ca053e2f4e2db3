"""How metrics are written: what is small keeps its digits."""

from __future__ import annotations

import math

import pytest

from bench.base.number_format import metric, plural
from bench.report.page import count, fixed, number
from bench.results.cells import Sample


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
        (8.1234567e30, None, "8.123e+30"),
        (-8.1234567e30, 0.5, "-8.123e+30"),
        (math.nan, None, "nan"),
        (math.inf, None, "inf"),
        (None, None, "-"),
    ],
)
def test_metric(value: float | None, beside: float | None, text: str) -> None:
    assert metric(value, beside) == text


def test_immense_numbers_of_a_report_are_short() -> None:
    assert fixed(Sample(2, 12_345.0, 2.5e30), 0) == "12,345 ± 2.5e+30"
    assert [number(7e30), number(2e9), count(3e15), count(5.25)] == ["7e+30", "2,000,000,000", "3e+15", "5.2"]


def test_one_is_no_plural() -> None:
    assert [plural(number, "run") for number in (0, 1, 2, 1000)] == ["0 runs", "1 run", "2 runs", "1,000 runs"]
