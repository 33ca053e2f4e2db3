"""Loops over flat numbers, compiled by Numba: one pass over memory where tensor operations take several.

For arrays [n] of float32 or float64, contiguous. They know no Python object, so that other threads go on meanwhile. What is
equal to the mean stays it, bit for bit, zeros of both signs and infinities too; nothing else is contracted or reordered but
the sums of squares, which are in double precision. `begin` and `proceed` are two, because a loop that may read where it
writes is not vectorised. Compiled once for a machine, and kept beside this file, or in Numba's cache of the user.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import float32, float64
from numpy.typing import NDArray

Flat = NDArray[np.float32] | NDArray[np.float64]


def _compiled(arrays: int, numbers: int) -> Callable[[Callable[..., float]], Callable[..., float]]:
    """Compile for that many arrays of one type and that many numbers behind them, now, for both types.

    Where no folder can be written, nothing is kept: the loop is compiled for this process alone."""
    signatures = [float64(*[kind[::1]] * arrays, *[float64] * numbers) for kind in (float32, float64)]

    def compile_(loop: Callable[..., float]) -> Callable[..., float]:
        try:
            done: Callable[..., float] = numba.njit(signatures, nogil=True, cache=True)(loop)
        except (RuntimeError, OSError):  # no place for a cache, or no room in it
            done = numba.njit(signatures, nogil=True)(loop)
        return done

    return compile_


@numba.njit
def _toward(mean: Any, value: Any, share: float) -> Any:
    """Return the running mean after `value`, of weight `share` in it."""
    return mean if mean == value else mean + (value - mean) * type(mean)(share)


@numba.njit(fastmath={"reassoc"})
def _sum(total: float, term: float) -> float:
    """Add in any order: that alone lets a loop use wide registers."""
    return total + term


@_compiled(5, 3)
def begin(mean: Flat, a: Flat, b: Flat, c: Flat, d: Flat, of_b: float, of_c: float, of_d: float) -> float:
    """Make `mean` the running mean of four arrays, each with its share at the time; return its sum of squares."""
    squares = 0.0
    for i in range(mean.size):
        new = _toward(_toward(_toward(a[i], b[i], of_b), c[i], of_c), d[i], of_d)
        mean[i] = new
        squares = _sum(squares, np.float64(new) * np.float64(new))
    return squares


@_compiled(5, 4)
def proceed(
    mean: Flat, a: Flat, b: Flat, c: Flat, d: Flat, of_a: float, of_b: float, of_c: float, of_d: float
) -> float:
    """Take four more arrays into `mean`; return its sum of squares."""
    squares = 0.0
    for i in range(mean.size):
        new = _toward(_toward(_toward(_toward(mean[i], a[i], of_a), b[i], of_b), c[i], of_c), d[i], of_d)
        mean[i] = new
        squares = _sum(squares, np.float64(new) * np.float64(new))
    return squares


@_compiled(2, 1)
def excess(replica: Flat, mean: Flat, blend: float) -> float:
    """Make `replica` blend * (replica - mean), zero where both are equal; return the sum of squares before `blend`."""
    squares = 0.0
    for i in range(mean.size):
        apart = replica[i] - mean[i] if replica[i] != mean[i] else mean.dtype.type(0)
        squares = _sum(squares, np.float64(apart) * np.float64(apart))
        replica[i] = apart * mean.dtype.type(blend)
    return squares
