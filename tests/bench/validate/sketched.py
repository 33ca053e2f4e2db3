"""Sketches with chosen sums, for the tests of the checks that read them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ddp.core.messages.event_parts import SketchGroup
from ddp.sketches import decode, encode

GROUPS = (
    SketchGroup("body.weight", "parameters", 100, "float32", True),
    SketchGroup("head.bias", "parameters", 10, "float32", True),
    SketchGroup("norm.running_mean", "buffers", 10, "float32", False),
)


def sketch(*values: float, size: float = 8.0) -> str:
    """Of as many groups, each with two sums made of one value."""
    sums = np.array([(value, 0.5 - value) for value in values])
    return encode(sums, np.full(len(values), size))


def mixed(parts: Sequence[tuple[float, str]]) -> str:
    """The sum of sketches, each times a factor."""
    sums = sum(factor * decode(text).sums for factor, text in parts)
    return encode(np.asarray(sums), np.max([decode(text).sizes for _, text in parts], axis=0))


def put(text: str, other: str, groups: Sequence[int]) -> str:
    """`text`, with some groups of another sketch."""
    first, second = decode(text), decode(other)
    sums, sizes = first.sums.copy(), first.sizes.copy()
    sums[list(groups)], sizes[list(groups)] = second.sums[list(groups)], second.sizes[list(groups)]
    return encode(sums, sizes)
