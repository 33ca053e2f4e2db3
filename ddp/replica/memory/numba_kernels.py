"""Loops over flat arrays, compiled by Numba: they read memory once where tensor operations read it several times.

Arrays have shape [n], float32 or float64, contiguous. The loops release the GIL. A value equal to the mean stays equal, bit
for bit, including signed zeros and infinities. Nothing is contracted or reordered except the sums of squares, which are in
double precision. `begin` and `proceed` are separate loops, as a loop that may read where it writes is not vectorised. Code
is compiled once per machine and cached beside this file, or in the user's Numba cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import float32, float64
from numpy.typing import NDArray

Flat = NDArray[np.float32] | NDArray[np.float64]


def _compiled(arrays: int, numbers: int) -> Callable[[Callable[..., float]], Callable[..., float]]:
    """Compile a loop, at once and for both types, that takes so many `arrays` of one type, then so many `numbers`.

    If no folder is writable, nothing is cached: the loop is compiled for this process alone."""
    signatures = [float64(*[kind[::1]] * arrays, *[float64] * numbers) for kind in (float32, float64)]

    def compile_(loop: Callable[..., float]) -> Callable[..., float]:
        try:
            done: Callable[..., float] = numba.njit(signatures, nogil=True, cache=True)(loop)
        except (RuntimeError, OSError):  # no folder for the cache, or no space in it
            done = numba.njit(signatures, nogil=True)(loop)
        return done

    return compile_


@numba.njit
def _toward(mean: Any, value: Any, share: float) -> Any:
    """Return the running mean after adding `value` with weight `share`."""
    return mean if mean == value else mean + (value - mean) * type(mean)(share)


@numba.njit(fastmath={"reassoc"})
def _sum(total: float, term: float) -> float:
    """Add with reassociation allowed, which alone lets the compiler vectorise the sum."""
    return total + term


@_compiled(5, 3)
def begin(mean: Flat, a: Flat, b: Flat, c: Flat, d: Flat, of_b: float, of_c: float, of_d: float) -> float:
    """Set `mean` to the running mean of four arrays, given the share of each when it is added; return its sum of
    squares."""
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
    """Add four more arrays to the running `mean`; return its sum of squares."""
    squares = 0.0
    for i in range(mean.size):
        new = _toward(_toward(_toward(_toward(mean[i], a[i], of_a), b[i], of_b), c[i], of_c), d[i], of_d)
        mean[i] = new
        squares = _sum(squares, np.float64(new) * np.float64(new))
    return squares


@_compiled(2, 1)
def excess(replica: Flat, mean: Flat, blend: float) -> float:
    """Replace `replica` by blend * (replica - mean), exactly zero where both are equal; return the sum of squares before
    `blend`."""
    squares = 0.0
    for i in range(mean.size):
        apart = replica[i] - mean[i] if replica[i] != mean[i] else mean.dtype.type(0)
        squares = _sum(squares, np.float64(apart) * np.float64(apart))
        replica[i] = apart * mean.dtype.type(blend)
    return squares
