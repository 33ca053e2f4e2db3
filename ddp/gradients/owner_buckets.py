"""Gradients on their way to their owners, during the backward pass: a few at a time, in an order that all ranks share.

A gradient larger than a bucket goes by itself, from where the backward pass left it; smaller ones are laid together. After
it has gone only what this rank owns is left of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ddp.comm.collectives import Collectives
from ddp.replica.sparse import dense
from ddp.sharding.layout import Run
from ddp.sharding.shards import Shard, ShardGroup


@dataclass(eq=False)
class Bucket:
    """Parameters whose gradients go together."""

    members: list[nn.Parameter]
    offsets: dict[nn.Parameter, int]
    total: int
    runs: list[Run]
    arrived: set[nn.Parameter] = field(default_factory=set)
    values: Tensor | None = None
    """Weighted gradients of those that have arrived."""


class Buckets:
    """The gradients of all groups that are trained; shards of them in `shard.values.grad` once `flush` is through."""

    def __init__(self, groups: list[ShardGroup], collectives: Collectives, most: int) -> None:
        """`most`: elements of a bucket of several parameters."""
        self._groups, self._collectives, self._most = [group for group in groups if group.trained], collectives, most
        self._shards: dict[nn.Parameter, Shard] = {}
        self._where: dict[nn.Parameter, tuple[ShardGroup, int]] = {}
        self._sums: dict[nn.Parameter, Tensor] = {}
        for group in self._groups:
            self._where |= {parameter: (group, index) for index, parameter in enumerate(group.parameters)}
            memory = torch.zeros(group.layout.length(group.rank), dtype=group.dtype, device=group.device)
            for shard in group.shards:
                self._shards[shard.parameter] = shard
                self._sums[shard.parameter] = memory[shard.at : shard.at + shard.stop - shard.start]
        self._touched: list[nn.Parameter] = []
        self._learned = False
        self._weight, self._next = 0.0, 0
        # Backward passes begin at the end of a model; the first one tells exactly.
        self._order = [p for group in self._groups for p in reversed(group.parameters)]
        self._pack()
        self._hooks: list[Any] = [
            parameter.register_post_accumulate_grad_hook(self._arrive)  # type: ignore[no-untyped-call]
            for parameter in self._order
        ]

    def close(self) -> None:
        """Gradients stay where they come."""
        for hook in self._hooks:
            hook.remove()

    def _pack(self) -> None:
        self._buckets: list[Bucket] = []
        for parameter in self._order:
            group, index = self._where[parameter]
            first, last = group.layout.span(index)
            bucket = self._buckets[-1] if self._buckets else None
            size = last - first
            if bucket is None or bucket.total + size > self._most or parameter.dtype != bucket.members[0].dtype:
                bucket = Bucket([], {}, 0, [])
                self._buckets.append(bucket)
            bucket.runs += [
                (owner, start + bucket.total, stop + bucket.total)
                for owner, start, stop in group.layout.runs(first, last)
            ]
            bucket.members.append(parameter)
            bucket.offsets[parameter] = bucket.total
            bucket.total += size
        self._of = {parameter: bucket for bucket in self._buckets for parameter in bucket.members}

    def begin(self, weight: float) -> None:
        """A step begins, whose gradients count `weight`."""
        self._weight, self._next, self._touched = weight, 0, []
        for bucket in self._buckets:
            bucket.arrived, bucket.values = set(), None
        for parameter in self._order:
            parameter.grad = None

    def _arrive(self, parameter: nn.Parameter) -> None:
        gradient, bucket = parameter.grad, self._of[parameter]
        assert gradient is not None
        gradient = dense(gradient)
        if parameter in bucket.arrived:
            raise ValueError(
                "a parameter got gradients twice in one step (two backward passes, or checkpointing with "
                "use_reentrant=True): call backward once, use_reentrant=False, or mode=zero1"
            )
        self._touched.append(parameter)
        parameter.grad = None
        # Adding to zero makes -0 a 0, as it does where gradients are accumulated in place.
        if bucket.total == gradient.numel():
            bucket.values = gradient.detach().contiguous().view(-1).add_(0.0).mul_(self._weight)
        else:
            if bucket.values is None:
                bucket.values = torch.zeros(bucket.total, dtype=gradient.dtype, device=gradient.device)
            at = bucket.offsets[parameter]
            view = bucket.values[at : at + gradient.numel()]
            torch.add(gradient.detach().reshape(-1), 0.0, out=view).mul_(self._weight)
        bucket.arrived.add(parameter)
        while self._next < len(self._buckets) and self._complete(self._buckets[self._next]):
            self._go()

    @staticmethod
    def _complete(bucket: Bucket) -> bool:
        return len(bucket.arrived) == len(bucket.members)

    def _go(self) -> None:
        bucket = self._buckets[self._next]
        values, bucket.values = bucket.values, None
        if values is None:
            values = torch.zeros(bucket.total, dtype=bucket.members[0].dtype, device=bucket.members[0].device)
        self._collectives.reduce(values, bucket.runs)
        for parameter, at in bucket.offsets.items():
            if (shard := self._shards.get(parameter)) is not None:
                self._sums[parameter].copy_(values[at + shard.start : at + shard.stop])
        self._next += 1

    def flush(self) -> None:
        """Those that nobody waits for any longer: of parameters that were not used, or of a slice without samples."""
        while self._next < len(self._buckets):
            self._go()

    def hand_over(self, used: dict[nn.Parameter, bool]) -> None:
        """To the optimizer; what no rank used has no gradient."""
        for parameter, shard in self._shards.items():
            shard.values.grad = self._sums[parameter] if used[parameter] else None

    def learn(self) -> None:
        """Take over the order in which gradients arrived on the first rank. All ranks call it, once."""
        if self._learned:
            return
        self._learned = True
        places = {parameter: place for place, parameter in enumerate(self._touched)}
        mine = [places.get(parameter, len(places)) for parameter in self._order]
        first = self._groups and self._groups[0].rank == 0
        order = torch.tensor(mine if first else [0] * len(mine), device=self._groups[0].device if mine else None)
        self._collectives.all_reduce([order])
        self._order = [p for _, p in sorted(zip(order.tolist(), self._order, strict=True), key=lambda pair: pair[0])]
        self._pack()

    def held(self) -> list[Tensor]:
        """What lives of gradients."""
        return [*self._sums.values(), *(b.values for b in self._buckets if b.values is not None)]
