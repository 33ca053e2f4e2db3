"""Weighted sums of many tensors in one pass over their memory, compiled by Numba. Knows addresses and weights alone.

The weight of an element is the product of two: one for its place in a block of `BLOCK` elements, from a table that stays in
the cache; one for the block's number in its tensor, from a hash. Both have a random sign and a size in [0.5, 1.5), so no
two elements have equal weights. Sums are in double precision, in any order."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import carray, types  # type: ignore[attr-defined]
from numba.core.extending import intrinsic
from numpy.typing import NDArray

from ddp.sketches import SUMS

BLOCK = 1 << 12
"""Elements of a block: two tables of weights and the values fit the L1 cache."""


def _pointer_to(kind: Any) -> Any:
    @intrinsic
    def pointer(typing: Any, address: Any) -> Any:
        signature = types.CPointer(kind)(types.int64)  # type: ignore[no-untyped-call]

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return signature, generate

    return pointer


_singles, _doubles = _pointer_to(types.float32), _pointer_to(types.float64)


@numba.njit
def _mix(number: Any) -> Any:
    """SplitMix64 (Steele et al. 2014)."""
    number = number + np.uint64(0x9E3779B97F4A7C15)
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))


@numba.njit
def _weight(bits: Any) -> float:
    """Return a weight of a random sign and a size in [0.5, 1.5), from 32 bits."""
    size = 0.5 + np.float64(bits & np.uint64(0x7FFFFFFF)) / 2147483648.0
    return -size if bits & np.uint64(0x80000000) else size


@numba.njit(fastmath={"reassoc", "contract"})
def _block(values: Any, first: Any, second: Any, of_first: float, of_second: float, out: Any) -> None:
    a = b = squares = 0.0
    for i in range(values.size):
        value = np.float64(values[i])
        a += value * np.float64(first[i])
        b += value * np.float64(second[i])
        squares += value * value
    out[0] += a * of_first
    out[1] += b * of_second
    out[2] += squares


@numba.njit
def _tensor(values: Any, start: int, seed: Any, table: Any, out: Any) -> None:
    """Add a part of a tensor, from its element `start` on, to the sums."""
    first = 0
    while first < values.size:
        block, at = divmod(start + first, BLOCK)
        count = min(values.size - first, BLOCK - at)
        bits = _mix(seed ^ _mix(np.uint64(block)))
        of_first, of_second = _weight(bits >> np.uint64(32)), _weight(bits & np.uint64(0xFFFFFFFF))
        places = slice(at, at + count)
        _block(values[first : first + count], table[0, places], table[1, places], of_first, of_second, out)
        first += count


def _add(addresses: Any, doubles: Any, starts: Any, sizes: Any, seeds: Any, groups: Any, table: Any, out: Any) -> None:
    for k in range(addresses.size):
        if doubles[k]:
            _tensor(carray(_doubles(addresses[k]), (sizes[k],)), starts[k], seeds[k], table, out[groups[k]])
        else:
            _tensor(carray(_singles(addresses[k]), (sizes[k],)), starts[k], seeds[k], table, out[groups[k]])


def _compiled() -> Any:
    whole = types.int64[::1]
    signature = types.void(
        whole, types.boolean[::1], whole, whole, types.uint64[::1], whole, types.float32[:, ::1], types.float64[:, ::1]
    )
    try:
        return numba.njit(signature, nogil=True, cache=True)(_add)
    except (RuntimeError, OSError):  # no folder for the cache, or no space in it
        return numba.njit(signature, nogil=True)(_add)


add = _compiled()
"""`add(addresses, doubles, starts, sizes, seeds, groups, table, out)`: add to row `groups[k]` of `out` [groups, 3] the two
weighted sums and the sum of squares of tensor k: `sizes[k]` numbers from `addresses[k]` on, of eight bytes if `doubles[k]`
else of four, the first of which is element `starts[k]` of the tensor with key `seeds[k]`."""


def table(key: int) -> NDArray[np.float32]:
    """Return the weights of the places in a block, [SUMS, BLOCK]."""
    numbers = np.arange(SUMS * BLOCK, dtype=np.uint64) ^ np.uint64(key & 0xFFFF_FFFF_FFFF_FFFF)
    with np.errstate(over="ignore"):
        bits = _mix.py_func(_mix.py_func(numbers))
    sizes = 0.5 + (bits >> np.uint64(33)).astype(np.float64) / 2.0**31
    weights: NDArray[np.float64] = np.where(bits & np.uint64(1), -sizes, sizes)
    return weights.reshape(SUMS, BLOCK).astype(np.float32)


def block_weights(seed: int, blocks: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the weights of a tensor's blocks, [blocks, SUMS], for tensors on devices that this loop cannot read."""
    weights = [_mix(np.uint64(seed) ^ _mix(np.uint64(block))) for block in blocks.tolist()]
    halves = [(_weight(bits >> np.uint64(32)), _weight(bits & np.uint64(0xFFFFFFFF))) for bits in weights]
    return np.array(halves, dtype=np.float64).reshape(-1, SUMS)
