"""The text format of recorded sketches: weighted sums and the size of each group of tensors.

A sketch is linear, so the sketch of a weighted mean is the weighted mean of the sketches. `ddp.replica.evidence` makes
sketches. Imports no torch: validation decodes sketches without it.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SUMS = 2
"""Number of sums in a group, each with its own weights. A defect that is a thousand times larger than rounding escapes one
sum for one key in a thousand, and both sums for one key in a million."""
LOWEST, HIGHEST = -123, 130
"""Range of the exponents of two of a recorded size. A smaller size is recorded as the lowest."""
_NOT_FINITE = 255
_TOO_LARGE = 2.0**128 - 2.0**103
"""Smallest value that single precision rounds to infinity."""


SHARDS = "shards"
"""Prefix of the names of sketches of tensors of which each rank has a part."""


class Sketch(NamedTuple):
    """A decoded sketch, in float64."""

    sums: NDArray[np.float64]
    """[groups, SUMS]; not finite if the group's size is not."""
    sizes: NDArray[np.float64]
    """[groups]: Euclidean norm, rounded up to a power of two; 0: every value is zero; infinite: some value is not
    finite."""


def encode(sums: NDArray[np.float64], norms: NDArray[np.float64]) -> str:
    """Return the text of a sketch: `sums` [groups, SUMS] in single precision, then one byte for each of `norms`
    [groups]."""
    values, codes = list[float](), bytearray()  # plain floats: NumPy is several times slower for a dozen rows
    for row, norm in zip(sums.tolist(), norms.tolist(), strict=True):
        code = _code(norm) if all(abs(value) < _TOO_LARGE for value in row) else _NOT_FINITE
        values += row if code != _NOT_FINITE else [0.0] * SUMS
        codes.append(code)
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values) + codes).decode()


def _code(norm: float) -> int:
    """Return the byte for a norm: its exponent of two, rounded up."""
    if norm == 0:
        return 0
    if not norm < 2.0**HIGHEST:
        return 1 + HIGHEST - LOWEST if norm == 2.0**HIGHEST else _NOT_FINITE
    fraction, power = math.frexp(norm)
    return max(power - (fraction == 0.5), LOWEST) - LOWEST + 1


@lru_cache(maxsize=4096)
def decode(text: str) -> Sketch:
    """Return the sketch in `text`; an empty text has no groups. Raises ValueError for a text that `encode` did not make."""
    try:
        raw = base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError(f"{text[:60]!r} is no sketch") from None
    groups, rest = divmod(len(raw), 4 * SUMS + 1)
    if rest:
        raise ValueError(f"{text[:60]!r} is no sketch: {len(raw)} bytes are no number of groups")
    sums = np.frombuffer(raw, "<f4", groups * SUMS).astype(np.float64).reshape(groups, SUMS)
    codes = np.frombuffer(raw, np.uint8, groups, offset=4 * SUMS * groups).astype(np.float64)
    sizes = np.where(codes > 0, 2.0 ** (codes - 1 + LOWEST), 0.0)
    sizes[codes == _NOT_FINITE] = np.inf
    sums[codes == _NOT_FINITE] = np.nan
    return Sketch(sums, sizes)
