"""Own the second kind: gradients in shards, too. Each gradient is sent to its owners during the backward pass; other ranks
do not keep it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from ddp.comm.transports.base import ShardRange
from ddp.core.samples.spans import Batch
from ddp.gradients.average import meet_counters
from ddp.gradients.owned import Own, OwnedGradients
from ddp.process.clock import now
from ddp.sharding.zero1 import ShardContext, ShardedStep


def largest(model: nn.Module) -> int:
    """Return the number of elements in the largest layer: the parameters that one module has itself."""
    return max((sum(p.numel() for p in module.parameters(recurse=False)) for module in model.modules()), default=0)


class Zero2(ShardedStep):
    """ZeRO stage 2: between steps a rank has the gradients that it owns, during the backward pass one more bucket."""

    whole_gradients = False

    def __init__(self, site: ShardContext) -> None:
        super().__init__(site)
        trained = [group for group in self.groups if group.trained]
        places = [(group, index) for group in trained for index in range(len(group.parameters))]
        self._parameters = [group.parameters[index] for group, index in places]
        number = {parameter: index for index, parameter in enumerate(self._parameters)}
        own: dict[int, Own] = {}
        for group in trained:
            memory = torch.zeros(group.layout.length(group.rank), dtype=group.dtype, device=group.device)
            for shard in group.shards:
                total = memory[shard.at : shard.at + shard.stop - shard.start]
                own[number[shard.parameter]] = shard.start, shard.stop, total
        self._own = [(shard, own[number[shard.parameter]][2]) for group in trained for shard in group.shards]

        def runs(index: int) -> list[ShardRange]:
            group, at = places[index]
            return group.layout.runs(*group.layout.span(at))

        most = self._most(largest(site.model))
        self.gradients = OwnedGradients(self._parameters, runs, own, site.collectives, most, site.sketches)

    @staticmethod
    def _most(largest: int) -> int:
        """Return the number of elements in a bucket."""
        return largest

    def begin(self, batch: Batch) -> float:
        """Clear the gradients. Return 1, the factor on the loss: each gradient is weighted when it arrives."""
        self.together.clear()
        self.meet()
        self.site.sketches.begin()
        self.gradients.begin(batch.samples / batch.total)
        return 1.0

    def one_pass(self, last: bool) -> AbstractContextManager[None]:
        """Send the gradients of the previous pass to their owners, which accumulate them: other ranks do not keep them."""
        self.gradients.next_pass()
        return nullcontext()

    def exchange(self, batch: Batch) -> None:
        """Send the remaining gradients to their owners, and buffers and usage flags to all ranks."""
        site, gradients = self.site, self.gradients
        gradients.flush()
        began = now()
        site.sketches.exchange()
        touched = {self._parameters[index] for index in gradients.used()}
        self.together.pack(batch.samples / batch.total, used=[float(p in touched) for p in site.state.parameters])
        site.meter.add("copy", began)
        site.collectives.all_reduce(self.together.flats)
        meet_counters(batch, self.together, site.collectives)
        self.together.unpack()
        used = dict(zip(site.state.parameters, self.together.used(), strict=True))
        for shard, total in self._own:
            shard.values.grad = total if used[shard.parameter] else None
        site.sketches.end(batch.samples, batch.total, self._owned_gradients(), parts=True)
        if not batch.idles:
            gradients.learn()

    def _let_go(self) -> None:
        super()._let_go()
        self.gradients.close()
