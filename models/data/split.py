"""A split that is part of a data set: drawn by a seed of its own, not a run's."""

from __future__ import annotations

from ddp.data import order


def held_out(seed: int, label: int, count: int) -> list[int]:
    """Which of the `count` samples of class `label` are evaluated on: a fifth, in no order."""
    places: list[int] = order(seed, label, count)[: round(count / 5)].tolist()
    return places
