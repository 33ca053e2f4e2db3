"""Own gradients that are sent to their owners during the backward pass: a few at a time, in the same order on all ranks.

A gradient as large as a bucket is sent from its own memory, unless other tensors of the backward pass share that; smaller
ones are copied into one bucket. After a bucket is sent, this rank keeps only the part that it owns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ddp.comm.collectives import Collectives
from ddp.comm.transports.base import ShardRange
from ddp.gradients.buckets import Item, Launches, assign
from ddp.gradients.storage import weigh
from ddp.replica.evidence.step_sketches import StepSketches
from ddp.replica.memory.shared_gradients import is_shared
from ddp.replica.sparse import dense

Own = tuple[int, int, Tensor]
"""The part of a parameter that this rank owns: elements [start, stop), and the tensor for their gradient [stop - start]."""


class OwnedGradients:
    """The gradients of `parameters`. After `flush`, each is summed over ranks in the memory of its owner."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        runs: Callable[[int], list[ShardRange]],
        own: Mapping[int, Own],
        collectives: Collectives,
        most: int,
        sketches: StepSketches,
    ) -> None:
        """`runs`: index of a parameter -> owners of its ranges; `own`: the ranges of this rank; `most`: elements of a
        bucket with several parameters."""
        self._parameters, self._runs, self._own = parameters, runs, own
        self._collectives, self._most, self._sketches = collectives, max(most, 1), sketches
        self._weight = 0.0
        self.touched: dict[int, None] = {}
        """Parameters whose gradients arrived in this pass, in the order of arrival."""
        self._earlier: set[int] = set()
        """Parameters whose gradients arrived in earlier passes of the step."""
        self._passes = 0
        """Number of passes begun in a step of several passes."""
        self._learned = False
        # A backward pass begins at the end of a model. The exact order is known after the first pass.
        self._assign(list(range(len(parameters))))
        self._hooks: list[Any] = [
            parameter.register_post_accumulate_grad_hook(partial(self._arrive, index))  # type: ignore[no-untyped-call]
            for index, parameter in enumerate(parameters)
        ]

    def close(self) -> None:
        """Remove the hooks: gradients stay in `.grad`."""
        for hook in self._hooks:
            hook.remove()

    def _assign(self, order: list[int]) -> None:
        """Fill buckets from the end of `order`."""
        items = [Item(self._parameters[index].numel(), str(self._parameters[index].dtype)) for index in order]
        plan = assign(items, [self._most])
        self._plan = [tuple(order[place] for place in bucket) for bucket in plan]
        self._launches = Launches(self._plan)
        self._places: dict[int, tuple[int, int, int]] = {}
        """Parameter -> (bucket, start, stop) of its elements."""
        for number, bucket in enumerate(self._plan):
            ends = [0, *accumulate(self._parameters[index].numel() for index in bucket)]
            self._places |= {index: (number, *span) for index, span in zip(bucket, pairwise(ends), strict=True)}
        self._filling: dict[int, Tensor] = {}
        """Bucket -> weighted gradients that have arrived."""

    def begin(self, weight: float) -> None:
        """Begin a step, whose gradients are multiplied by `weight`."""
        self._weight, self._passes = weight, 0
        self._earlier.clear()
        self._begin_pass()

    def next_pass(self) -> None:
        """Begin one of several passes of the step. Its gradients are added to those of the earlier passes."""
        if self._passes:
            self.flush()
            self._earlier |= self.touched.keys()
            self._begin_pass()
        self._passes += 1

    def _begin_pass(self) -> None:
        self.touched.clear()
        self._launches.reset()
        self._filling.clear()
        for parameter in self._parameters:
            parameter.grad = None

    def _arrive(self, index: int, parameter: Tensor) -> None:
        if index in self.touched:
            raise ValueError(
                "a parameter got gradients twice in one step (two backward passes, or checkpointing with "
                "use_reentrant=True): call backward once, use_reentrant=False, or mode=zero1"
            )
        self.touched[index] = None
        gradient, parameter.grad = parameter.grad, None
        assert gradient is not None
        self._sketches.add([(parameter, gradient, 0)])
        gradient = dense(gradient).detach()
        self._take_in(index, gradient)
        for bucket in self._launches.arrive(index):
            self._send(bucket)

    @torch.no_grad()
    def _take_in(self, index: int, gradient: Tensor) -> None:
        number, start, stop = self._places[index]
        if len(self._plan[number]) == 1:
            own = gradient.new_empty(gradient.numel()) if is_shared(gradient) else gradient.contiguous().view(-1)
            values = self._filling[number] = own
        else:
            if number not in self._filling:
                self._filling[number] = self._zeros(number)
            values = self._filling[number][start:stop]
        weigh(gradient.reshape(-1), self._weight, values)

    def _zeros(self, number: int) -> Tensor:
        bucket = self._plan[number]
        like = self._parameters[bucket[0]]  # only for its type and device: its values may be sharded
        return torch.zeros(self._places[bucket[-1]][2], dtype=like.dtype, device=like.device)

    def _send(self, number: int) -> None:
        values = self._filling.pop(number, None)
        values = self._zeros(number) if values is None else values
        runs = [
            (owner, start + self._places[index][1], stop + self._places[index][1])
            for index in self._plan[number]
            for owner, start, stop in self._runs(index)
        ]
        self._collectives.reduce_scatter(values, runs)
        for index in self._plan[number]:
            if index in self._own:
                start, stop, total = self._own[index]
                mine = values[self._places[index][1] + start : self._places[index][1] + stop]
                total.add_(mine) if self._passes > 1 else total.copy_(mine)

    def flush(self) -> None:
        """Send the remaining buckets: those with parameters that were not used, or all of a slice without samples."""
        for bucket in self._launches.rest():
            self._send(bucket)

    def used(self) -> set[int]:
        """Return the parameters whose gradients arrived in this step."""
        return self._earlier | self.touched.keys()

    def learn(self) -> None:
        """Adopt the order in which gradients arrived on the first rank. All ranks call this; only the first call has an
        effect."""
        if self._learned or not self._parameters:
            return
        self._learned = True
        count = len(self._parameters)
        first = self._collectives.transport.config.rank == self._collectives.members[0]
        places = {index: place for place, index in enumerate(self.touched)}
        mine = [places.get(index, count) if first else 0 for index in range(count)]
        order = torch.tensor(mine, device=self._parameters[0].device)
        self._collectives.all_reduce([order])
        ranked = sorted(range(count - 1, -1, -1), key=order.tolist().__getitem__)
        self._assign(ranked[::-1])

    def alive(self) -> list[Tensor]:
        """Return the tensors of gradients that are in memory."""
        return [*(total for _, _, total in self._own.values()), *self._filling.values()]
