"""Own the memory of buckets, and in it the place of each gradient. Knows neither ranks nor what a bucket is sent with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

import torch
from torch import Tensor, nn

from ddp.gradients.buckets import Plan
from ddp.replica.sparse import dense

Allocate = Callable[[int, int, torch.dtype], Tensor]
"""Gives flat memory by the number of a bucket, its elements and its type."""


def layout(parameter: Tensor) -> Tensor:
    """Return how autograd lays out a gradient of `parameter`: a tensor without values, of that shape and those strides."""
    return torch.empty_like(parameter, device="meta", requires_grad=False)


class BucketStorage:
    """One flat tensor for each bucket: the gradients of its members, and behind them a tail of so many elements.

    A gradient lies in the strides that autograd gives it: fused optimizers pair what lies alike.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        plan: Plan,
        allocate: Allocate,
        tails: Mapping[int, tuple[torch.dtype, int]] | None = None,
        line: int = 0,
    ) -> None:
        """`tails`: type and elements by bucket. `line`: bytes of which a gradient's place begins at a multiple."""
        self.parameters, self.plan = parameters, plan
        self.flats: list[Tensor] = []
        self.tails: list[Tensor] = []
        self._parts: dict[int, Tensor] = {}
        self.views: list[Tensor] = [torch.empty(0)] * len(parameters)  # those of a bucket are laid below
        self._layouts = [layout(parameter) for parameter in parameters]
        for number, bucket in enumerate(plan):
            dtype, tail = (tails or {}).get(number) or (parameters[bucket[0]].dtype, 0)
            step = max(line // dtype.itemsize, 1)
            sizes = [-(-parameters[index].numel() // step) * step for index in bucket]
            flat = allocate(number, sum(sizes) + tail, dtype).zero_()
            self.flats.append(flat)
            *parts, behind = torch.split(flat, [*sizes, tail])
            self.tails.append(behind)
            self._parts |= zip(bucket, parts, strict=True)
        self.values = [flat[: flat.numel() - tail.numel()] for flat, tail in zip(self.flats, self.tails, strict=True)]
        """The buckets without their tails."""
        for index in self._parts:
            self._lay(index)

    def _lay(self, index: int) -> None:
        part, like = self._parts[index], self._layouts[index]
        self.views[index] = part.as_strided(like.shape, like.stride(), part.storage_offset())

    def mend(self, index: int) -> None:
        """Lay a view anew that `p.grad.data = ...` has given other memory."""
        if self.views[index].data_ptr() != self._parts[index].data_ptr():
            self._lay(index)

    def is_here(self, index: int) -> bool:
        """Return whether a parameter's gradient is in its place."""
        grad = self.parameters[index].grad
        return grad is self.views[index] and grad.data_ptr() == self._parts[index].data_ptr()

    @torch.no_grad()
    def take_in(self, index: int, weight: float = 1.0) -> None:
        """Bring a gradient times `weight` to its place, whoever made it, dense or sparse; none counts as zero."""
        grad = self.parameters[index].grad
        self.mend(index)
        view = self.views[index]
        if grad is None or not weight:
            view.zero_()
        elif grad is view:
            view.mul_(weight)
        else:
            weigh(dense(grad).detach(), weight, view)

    def place(self, index: int) -> None:
        """Bring a gradient that has come to its place, and make this the parameter's gradient."""
        if not self.is_here(index):
            self.take_in(index)
            self.attach([index])

    def fill(self, number: int, weight: float) -> None:
        """Bring the gradients of a bucket times `weight` to their places, and make these the parameters' gradients."""
        bucket = self.plan[number]
        if all(map(self.is_here, bucket)):
            self.values[number].mul_(weight) if weight else self.values[number].zero_()
            return
        for index in bucket:
            self.take_in(index, weight)
        self.attach(bucket)

    def attach(self, indices: Iterable[int]) -> None:
        """Make the places of these parameters their gradients."""
        for index in indices:
            self.parameters[index].grad = self.views[index]


def weigh(gradient: Tensor, weight: float, out: Tensor) -> None:
    """Write a gradient times `weight` to `out`, of its shape, in one pass.

    Adding to zero makes -0 a 0, as it does where gradients are accumulated in place.
    """
    if out.dtype.itemsize == 2:  # whose sums with a factor are rounded otherwise than their products
        torch.add(gradient, 0.0, out=out).mul_(weight)
    else:
        torch.add(_zero(out.dtype), gradient, alpha=weight, out=out)


@cache
def _zero(dtype: torch.dtype) -> Tensor:
    return torch.zeros((), dtype=dtype)
