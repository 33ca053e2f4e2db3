"""Linear algebra of sketches: the sketch of a combination of states, and whether another differs by more than rounding.

Rounding errors have random signs in a sketch, so they add up as the root of the sum of squares, not as the sum of
magnitudes. So even a small defect of a large tensor shows. The tolerance is `SAFETY` standard deviations. Knows no
runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from ddp.core.messages.event_parts import SketchGroup
from ddp.sketches import Sketch, decode

Rows = NDArray[np.float64]
SAFETY = 8.0
SINGLE = 2.0**-24
"""Largest relative rounding error in single precision, in which sums are recorded."""
UNITS = {"float64": (2.0**-53, 0.0), "float32": (SINGLE, 2.0**-150), "bfloat16": (2.0**-9, 2.0**-134)}
UNITS |= {"float16": (2.0**-11, 2.0**-25)}
"""Type -> (relative rounding error, absolute rounding error of subnormal numbers)."""


@dataclass(frozen=True)
class Combined:
    """A linear combination of sketches, for each group of tensors."""

    sums: Rows
    """[groups, sums]; not finite where a sketch is not."""
    magnitudes: Rows
    """[groups, sums]: the sum of the magnitudes of the terms."""
    sizes: Rows
    """[groups]: the largest size of the combined states."""


@dataclass(frozen=True)
class SketchDifference:
    """The group in which two sketches differ most."""

    group: str
    value: float
    wanted: float
    times: float
    """The difference, as a multiple of what rounding can cause."""

    def __str__(self) -> str:
        how = f"off by {self.times:.3g} times the rounding tolerance"
        return f"{self.group}: weighted sum {self.value:.9g}, expected {self.wanted:.9g}, {how}"


def combine(terms: Sequence[tuple[float | Rows, Sketch]]) -> Combined:
    """Return the sum of sketches, each times a factor (for all groups, or by group). A factor of 0 leaves a sketch out.
    Raises ValueError for sketches of different lengths."""
    if len({len(sketch.sizes) for _, sketch in terms}) > 1:
        counts = ", ".join(str(len(sketch.sizes)) for _, sketch in terms)
        raise ValueError(f"sketches have {counts} groups; all sketches of a run need the same number")
    shape = terms[0][1].sums.shape
    sums, magnitudes, sizes = np.zeros(shape), np.zeros(shape), np.zeros(shape[0])
    for factor, sketch in terms:
        factors = np.broadcast_to(np.asarray(factor, dtype=np.float64), shape[:1])
        used = factors != 0
        part = np.where(used[:, None], factors[:, None] * sketch.sums, 0.0)
        sums, magnitudes = sums + part, magnitudes + np.abs(part)
        sizes = np.maximum(sizes, np.where(used, sketch.sizes, 0.0))
    return Combined(sums, magnitudes, sizes)


def mean(parts: Sequence[tuple[float, str]]) -> Combined:
    """Return the weighted mean of recorded sketches. Raises ValueError, as `combine` does."""
    total = sum(weight for weight, _ in parts)
    return combine([(weight / total, decode(text)) for weight, text in parts])


def apart(
    groups: Sequence[SketchGroup], given: str | Combined, wanted: Combined, roundings: float, room: float = 0.0
) -> SketchDifference | None:
    """Return the group in which a sketch differs most from `wanted`, if the difference exceeds `roundings` roundings of
    every value and a change of the size `room`; else None. Groups in which `wanted` is not finite are ignored. Raise
    ValueError for another number of groups."""
    actual = combine([(1.0, decode(given))]) if isinstance(given, str) else given
    if not actual.sums.shape == wanted.sums.shape == (len(groups), wanted.sums.shape[1]):
        raise ValueError(f"sketches have {len(actual.sizes)}, {len(wanted.sizes)} groups, but {len(groups)} are named")
    units = np.array([UNITS.get(group.dtype, UNITS["float32"]) for group in groups]).reshape(-1, 2)
    least = units[:, 1] * np.sqrt([group.elements for group in groups])
    sizes = np.maximum(wanted.sizes, np.where(np.isfinite(actual.sizes), actual.sizes, 0.0))
    with np.errstate(invalid="ignore"):  # what is not finite is judged below
        allowed = SAFETY * (roundings * (units[:, 0] * sizes + least) + room)
        stored = 2 * SINGLE * (wanted.magnitudes + np.nan_to_num(actual.magnitudes))
        limits = allowed[:, None] + stored + np.finfo(np.float64).tiny
        times = np.abs(actual.sums - wanted.sums) / limits
    times[np.isnan(actual.sums)] = np.inf
    times[np.isnan(wanted.sums)] = 0.0
    group, place = np.unravel_index(int(times.argmax()), times.shape) if times.size else (0, 0)
    if not times.size or times[group, place] <= 1.0:
        return None
    values = float(actual.sums[group, place]), float(wanted.sums[group, place]), float(times[group, place])
    return SketchDifference(groups[int(group)].name, *values)


def distance(first: Sketch, second: Sketch) -> float:
    """Return an estimate of the Euclidean distance of two states, from all their sums, correct to a factor of about
    two."""
    squares = np.square(first.sums - second.sums)
    return sqrt(float(np.nansum(squares)) / max(first.sums.shape[1], 1))
