"""Own the memory of buckets, and the place of each gradient in it. Knows neither ranks nor how a bucket is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

import torch
from torch import Tensor, nn

from ddp.gradients.buckets import Plan
from ddp.replica.sparse import dense

Allocate = Callable[[int, int, torch.dtype], Tensor]
"""(number of a bucket, its elements, its data type) -> flat tensor."""


def layout(parameter: Tensor) -> Tensor:
    """Return a tensor on the meta device with the shape and strides that autograd gives to the gradient of `parameter`."""
    return torch.empty_like(parameter, device="meta", requires_grad=False)


class BucketStorage:
    """One flat tensor for each bucket: the gradients of its members, then an optional tail.

    A gradient has the strides that autograd gives it, because fused optimizers need parameter and gradient in the same
    layout.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        plan: Plan,
        allocate: Allocate,
        tails: Mapping[int, tuple[torch.dtype, int]] | None = None,
        line: int = 0,
    ) -> None:
        """`tails`: bucket -> (type, elements) of its tail. `line`: alignment in bytes of each gradient's place."""
        self.parameters, self.plan = parameters, plan
        self.flats: list[Tensor] = []
        self.tails: list[Tensor] = []
        self._parts: dict[int, Tensor] = {}
        self.views: list[Tensor] = [torch.empty(0)] * len(parameters)  # replaced below for the members of buckets
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
        """Make a view anew if `p.grad.data = ...` has replaced its memory."""
        if self.views[index].data_ptr() != self._parts[index].data_ptr():
            self._lay(index)

    def is_here(self, index: int) -> bool:
        """Return whether a parameter's gradient is in its place in the bucket."""
        grad = self.parameters[index].grad
        return grad is self.views[index] and grad.data_ptr() == self._parts[index].data_ptr()

    @torch.no_grad()
    def take_in(self, index: int, weight: float = 1.0) -> None:
        """Write a gradient times `weight` to its place, whether it is dense or sparse. A missing gradient counts as
        zero."""
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
        """Move an arrived gradient to its place, and set `.grad` to that view."""
        if not self.is_here(index):
            self.take_in(index)
            self.attach([index])

    def fill(self, number: int, weight: float) -> None:
        """Move the gradients of a bucket, times `weight`, to their places, and set `.grad` to these views."""
        bucket = self.plan[number]
        if all(map(self.is_here, bucket)):
            self.values[number].mul_(weight) if weight else self.values[number].zero_()
            return
        for index in bucket:
            self.take_in(index, weight)
        self.attach(bucket)

    def attach(self, indices: Iterable[int]) -> None:
        """Set `.grad` of these parameters to their places in the buckets."""
        for index in indices:
            self.parameters[index].grad = self.views[index]


def weigh(gradient: Tensor, weight: float, out: Tensor) -> None:
    """Write a gradient times `weight` to `out`, which has the same shape, in one pass.

    Adding to zero turns -0 into 0, as accumulating gradients in place does.
    """
    if out.dtype.itemsize == 2:  # half precision rounds add(alpha=) differently from a product
        torch.add(gradient, 0.0, out=out).mul_(weight)
    else:
        torch.add(_zero(out.dtype), gradient, alpha=weight, out=out)


@cache
def _zero(dtype: torch.dtype) -> Tensor:
    return torch.zeros((), dtype=dtype)
