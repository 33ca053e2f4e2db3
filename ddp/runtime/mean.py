"""The weighted mean of replicas that lie in memory, piece by piece in the cache. Tensor code alone.

A running mean, m <- m + (x - m) w_k / (w_1 + ... + w_k): one pass over each replica, no wider type, an error of a few units
in the last place. The difference is taken from the heavier side, which keeps equal values bit for bit, the sign of zero too:
identical replicas give themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ddp.runtime.buffers import signed
from ddp.runtime.outer import Outer, precise

PIECE = 1 << 18
"""Elements at a time: large enough for calls to cost nothing, small enough for the running mean to stay in the cache."""


def pieces(elements: int, piece: int = PIECE) -> Iterator[slice]:
    """Slices that cover so many elements."""
    for start in range(0, elements, piece):
        yield slice(start, min(start + piece, elements))


def square(tensor: Tensor) -> float:
    """Sum of squares of a flat tensor; in double precision where its own type overflows."""
    own = tensor.to(precise(tensor.dtype))
    total = float(torch.dot(own, own))
    return total if math.isfinite(total) else float(own.double().norm()) ** 2


def ratio(change: float, norm: float) -> float | None:
    """||change|| / ||norm|| from sums of squares; None if that is not finite."""
    quotient = math.sqrt(change / norm) if norm > 0 else change  # nothing there: zero, or not a number
    return quotient if math.isfinite(quotient) else None


def average(
    mean: Tensor,
    replicas: Sequence[Tensor],
    weights: Sequence[float],
    outer: Outer | None = None,
    blend: float | None = None,
    measure: bool = False,
) -> tuple[float, list[float]]:
    """`mean` becomes the average of `replicas` (flat, same size and type); integers take the maximum.

    A weight of 0 leaves a replica out, whatever it holds; if all are 0, all count alike. `outer` takes its step from the
    average that `mean` holds on entry. With `blend`, every replica becomes its excess, blend * (replica - average), which is
    exactly zero where both are equal, infinities too. Returns the squared norms of the average and of each replica's
    distance from it, where these are to be measured.
    """
    norm, changes = 0.0, [0.0] * len(replicas)
    entering = [k for k, weight in enumerate(weights) if weight] or list(range(len(replicas)))
    shares = [weights[k] or 1.0 for k in entering]
    # Cut once: a slice costs as much as a third of the arithmetic on it.
    for piece, part, *own in zip(
        pieces(mean.numel()), *(torch.split(flat, PIECE) for flat in (mean, *replicas)), strict=True
    ):
        last = part.clone() if outer is not None else None
        length = _combine(part, own, entering, shares)
        if outer is not None and last is not None:
            outer.step(part, last, piece)
            length = square(part)
        finite = math.isfinite(length)
        norm += length if measure else 0.0
        if blend is None or part.dtype is torch.bool:
            continue
        for k, replica in enumerate(own):
            same = None if finite else replica == part
            signed(replica).sub_(signed(part))
            if same is not None:
                replica.masked_fill_(same, 0.0)
            if measure:
                changes[k] += square(replica)
            if blend != 1.0:
                replica.mul_(blend)
    return norm, changes


def _combine(mean: Tensor, replicas: list[Tensor], entering: list[int], weights: list[float]) -> float:
    """The mean of those that enter, or the maximum of all; returns its squared norm, infinite unless all elements are
    finite. Of integers 0."""
    if not mean.is_floating_point():
        mean.copy_(replicas[0])
        for replica in replicas[1:]:
            torch.maximum(mean, replica, out=mean)
        return 0.0
    kind = precise(mean.dtype)
    chosen = [replicas[k] for k in entering]
    into = mean if mean.dtype == kind else torch.empty_like(mean, dtype=kind)
    now, total = chosen[0].to(kind), weights[0]
    for replica, weight in zip(chosen[1:], weights[1:], strict=True):
        total += weight
        share, own = weight / total, replica.to(kind)
        # `lerp` starts from the nearer end; only with a share of 0.5 or more does a zero keep its sign there.
        now = torch.lerp(now, own, share, out=into) if share >= 0.5 else torch.lerp(own, now, 1.0 - share, out=into)
    if now is not mean:
        mean.copy_(now)
    length = square(now)
    if math.isfinite(length):
        return length
    # Equal infinities have no difference.
    same = torch.stack([replica == chosen[0] for replica in chosen]).all(dim=0)
    mean.copy_(torch.where(same, chosen[0], mean))
    return math.inf
