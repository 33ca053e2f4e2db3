"""Sums of means are exact: their order changes nothing, and they are those of fractions."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from ddp.core.figures.exact_means import Mean


@given(st.lists(st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 9)), min_size=1))
def test_a_mean_is_that_of_fractions_in_any_order(values: list[tuple[float, int]]) -> None:
    forth, back = Mean(), Mean()
    for total, count in values:
        forth.add(total, count)
    for total, count in reversed(values):
        back.add(total, count)
    try:
        exact = float(sum(Fraction(total) for total, _ in values)) / sum(count for _, count in values)
    except OverflowError:
        exact = None
    assert forth.value == back.value == exact
