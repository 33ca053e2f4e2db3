"""Grouping and adding up by key."""

from __future__ import annotations

from bench.base.grouping import grouped, summed


def test_values_keep_their_order_under_the_first_place_of_their_key() -> None:
    groups = grouped((len(word), word) for word in ("ab", "c", "de"))
    assert list(groups.items()) == [(2, ["ab", "de"]), (1, ["c"])]
    assert groups[7] == []


def test_values_are_added_up() -> None:
    sums = summed((key, value) for key, value in (("a", 0.5), ("b", 1.0), ("a", 0.25)))
    assert dict(sums) == {"a": 0.75, "b": 1.0}
    assert sums["c"] == 0
