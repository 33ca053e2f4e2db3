"""What `make test` leaves to `make slow`: second combinations of what real processes show dearly, and experiments."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def slow(*values: Any) -> list[Any]:
    """Mark values of a parameter, or tuples with those of several."""
    return every(0, values)


def every(step: int, values: Iterable[Any]) -> list[Any]:
    """Mark all but each `step`-th, from the first on; with 0 all."""
    return [_marked(value, not step or number % step > 0) for number, value in enumerate(values)]


def few(*axes: Iterable[Any]) -> list[Any]:
    """Combine all values of all axes, marked but for each value of each axis with those of the others in turn."""
    values = [list(axis) for axis in axes]
    places = [range(len(each)) for each in values]
    kept = diagonal(*places)
    return [_marked(tuple(map(list.__getitem__, values, at)), at not in kept) for at in product(*places)]


def diagonal(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return each value of each axis, with those of the others in turn."""
    values = [list(axis) for axis in axes]
    return [tuple(each[turn % len(each)] for each in values) for turn in range(max(map(len, values)))]


def _marked(value: Any, mark: bool) -> Any:
    return pytest.param(*value if isinstance(value, tuple) else (value,), marks=[pytest.mark.slow] * mark)
