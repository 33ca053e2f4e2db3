"""Gradients in shards, too: each goes to its owners during the backward pass, and is forgotten by all others."""

from __future__ import annotations

import torch
from torch import nn

from ddp.comm.transports.base import Run
from ddp.core.spans import Batch
from ddp.gradients.average import meet_counters
from ddp.gradients.owned import Own, OwnedGradients
from ddp.gradients.step_gradients import StepGradients
from ddp.process.clock import now
from ddp.sharding.zero1 import ShardContext, ShardedStep


def largest(model: nn.Module) -> int:
    """Elements of the largest layer: of the parameters that one module has itself."""
    return max((sum(p.numel() for p in module.parameters(recurse=False)) for module in model.modules()), default=0)


class Zero2(ShardedStep):
    """Between steps a rank has the gradients that it owns; during the backward pass a bucket's more."""

    def __init__(self, site: ShardContext) -> None:
        super().__init__(site)
        self.rest = StepGradients(site.state, site.collectives.transport.empty, gradients=False)
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

        def runs(index: int) -> list[Run]:
            group, at = places[index]
            return group.layout.runs(*group.layout.span(at))

        self.gradients = OwnedGradients(self._parameters, runs, own, site.collectives, self._most(largest(site.model)))

    @staticmethod
    def _most(largest: int) -> int:
        """Elements of a bucket."""
        return largest

    def begin(self, batch: Batch) -> float:
        """Gradients are weighted one by one, when they are there."""
        self.meet()
        self.rest.clear()
        self.gradients.begin(batch.samples / batch.total)
        return 1.0

    def exchange(self, batch: Batch) -> None:
        """Send what the backward pass has not; buffers, and which parameters were used, to all."""
        site, gradients = self.site, self.gradients
        gradients.flush()
        began = now()
        touched = {self._parameters[index] for index in gradients.touched}
        self.rest.pack(batch.samples / batch.total, used=[float(p in touched) for p in site.state.parameters])
        site.meter.add("copy", began)
        site.collectives.all_reduce(self.rest.flats)
        meet_counters(batch, self.rest, site.collectives)
        self.rest.unpack()
        used = dict(zip(site.state.parameters, self.rest.used(), strict=True))
        for shard, total in self._own:
            shard.values.grad = total if used[shard.parameter] else None
        if not batch.idles:
            gradients.learn()

    def _let_go(self) -> None:
        self.gradients.close()

    def undo(self) -> None:
        """Put the buffers back."""
        self.rest.undo()

    def rebase(self) -> None:
        """Changes of buffers count from here."""
        self.rest.rebase()
