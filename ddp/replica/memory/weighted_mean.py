"""The weighted mean of replicas in memory, computed in pieces that fit the cache.

A running mean, m <- m + (x - m) w_k / (w_1 + ... + w_k): one pass over each replica, no wider type, an error of a few units
in the last place. Equal values stay equal bit for bit, so the mean of identical replicas is the replica itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import cast

import torch
from torch import Tensor

from ddp.replica.memory.buffers import signed
from ddp.replica.memory.numba_kernels import Flat, begin, excess, proceed
from ddp.replica.optim.outer_optimizer import Outer, precise

PIECE = 1 << 18
"""Elements per piece: so many that the calls cost nothing, so few that the running mean stays in the cache."""


def pieces(elements: int, piece: int = PIECE) -> Iterator[slice]:
    """Yield slices that cover `elements` elements."""
    for start in range(0, elements, piece):
        yield slice(start, min(start + piece, elements))


def square(tensor: Tensor) -> float:
    """Return the sum of squares of a flat tensor; in double precision where its own type overflows."""
    own = tensor.to(precise(tensor.dtype))
    total = float(torch.dot(own, own))
    return total if math.isfinite(total) else float(own.double().norm()) ** 2


def ratio(change: float, norm: float) -> float | None:
    """Return ||change|| / ||norm|| from sums of squares; None if that is not finite."""
    quotient = math.sqrt(change / norm) if norm > 0 else change  # norm 0, or NaN
    return quotient if math.isfinite(quotient) else None


def average(
    mean: Tensor,
    replicas: Sequence[Tensor],
    weights: Sequence[float],
    outer: Outer | None = None,
    blend: float | None = None,
) -> tuple[float, list[float]]:
    """Set `mean` to the average of `replicas` (flat, same size and type, on the CPU); integers take the maximum.

    A weight of 0 leaves a replica out, whatever it holds; if all weights are 0, all replicas count alike. On entry `mean`
    holds the last average, from which `outer` takes its step. With `blend`, every replica becomes its excess, blend *
    (replica - average), exactly zero where both are equal, infinities too. Returns the squared norm of the average and,
    with `blend`, of each replica's distance from it (zeros for integers)."""
    norm, changes = 0.0, [0.0] * len(replicas)
    if not mean.is_floating_point():
        _highest(mean, replicas, blend)
        return norm, changes
    entering = [k for k, weight in enumerate(weights) if weight] or list(range(len(replicas)))
    shares = _shares([weights[k] or 1.0 for k in entering])
    narrow = precise(mean.dtype) != mean.dtype
    whole, *own = [_numbers(flat) for flat in (mean, *replicas)]
    for piece in pieces(mean.numel()):
        # Half-precision replicas are copied; others are used in place.
        into, wide = whole(piece), [numbers(piece) for numbers in own]
        last = mean[piece].clone() if outer is not None else None
        length = _combine(into, [wide[k] for k in entering], shares)
        if narrow:
            mean[piece] = torch.from_numpy(into)
        if outer is not None and last is not None:
            outer.step(mean[piece], last, piece)
            length = square(mean[piece])
        norm += length
        if blend is None:
            continue
        into = whole(piece)
        for k, values in enumerate(wide):
            changes[k] += excess(values, into, blend)
            if narrow:
                replicas[k][piece] = torch.from_numpy(values)
    return norm, changes


def _numbers(flat: Tensor) -> Callable[[slice], Flat]:
    """Return a function that gives slices of a flat tensor as NumPy arrays in a type to compute in."""
    kind = precise(flat.dtype)
    if flat.dtype == kind:
        return cast("Flat", flat.numpy()).__getitem__  # slicing an array takes a fifth of the time of slicing a tensor
    return lambda piece: cast("Flat", flat[piece].to(kind).numpy())


def _shares(weights: Sequence[float]) -> list[float]:
    """Return the share that each replica gets of the running mean when it is added: 1 for the first, whatever its
    weight."""
    return [weight / total for weight, total in zip(weights, accumulate(weights), strict=True)]


def _combine(mean: Flat, replicas: Sequence[Flat], shares: Sequence[float]) -> float:
    """Average four replicas at a time; the last one is repeated with share 0 to fill a group."""
    missing = -len(replicas) % 4
    arrays, numbers = [*replicas, *[replicas[-1]] * missing], [*shares, *[0.0] * missing]
    squares = begin(mean, *arrays[:4], *numbers[1:4])
    for k in range(4, len(arrays), 4):
        squares = proceed(mean, *arrays[k : k + 4], *numbers[k : k + 4])
    return squares


def _highest(mean: Tensor, replicas: Sequence[Tensor], blend: float | None) -> None:
    """Take the maximum of integers; with `blend`, whatever its value, every replica becomes its difference from it."""
    mean.copy_(replicas[0])
    for replica in replicas[1:]:
        torch.maximum(mean, replica, out=mean)
    if blend is not None and mean.dtype is not torch.bool:
        for replica in replicas:
            signed(replica).sub_(signed(mean))
