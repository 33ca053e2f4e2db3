"""Gradients in shards, too: each goes to its owners during the backward pass, and is forgotten by all others."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from ddp.core.spans import Batch
from ddp.gradients.flat_gradients import FlatGradients
from ddp.gradients.instep import meet_counters
from ddp.gradients.owner_buckets import Buckets
from ddp.process.clock import now
from ddp.sharding.zero1 import ShardContext, ShardedStep


def largest(model: nn.Module) -> int:
    """Elements of the largest layer: of the parameters that one module has itself."""
    return max((sum(p.numel() for p in module.parameters(recurse=False)) for module in model.modules()), default=0)


class Zero2(ShardedStep):
    """Between steps a rank has the gradients that it owns; during the backward pass a bucket's more."""

    def __init__(self, site: ShardContext) -> None:
        super().__init__(site)
        self.rest = FlatGradients(site.state, site.collectives.transport.empty, gradients=False)
        self.buckets = Buckets(self.groups, site.collectives, self._most(largest(site.model)))

    @staticmethod
    def _most(largest: int) -> int:
        """Elements of a bucket."""
        return largest

    def begin(self, batch: Batch) -> float:
        """Gradients are weighted one by one, when they are there."""
        self.meet()
        self.rest.zero()
        self.buckets.begin(batch.samples / batch.total)
        return 1.0

    def exchange(self, batch: Batch) -> None:
        """What the backward pass has not sent; buffers, and which parameters were used, to all."""
        site = self.site
        self.buckets.flush()
        began = now()
        self.rest.pack(batch.samples / batch.total)
        site.meter.add("copy", began)
        site.collectives.all_reduce(self.rest.flats)
        meet_counters(batch, self.rest, site.collectives)
        self.rest.unpack()
        self.buckets.hand_over(dict(zip(site.state.parameters, self._used(), strict=True)))
        if not batch.idles:
            self.buckets.learn()

    def _let_go(self) -> None:
        self.rest.close()
        self.buckets.close()

    def _used(self) -> Iterable[bool]:
        return self.rest.used()

    def undo(self) -> None:
        """Put the buffers back."""
        self.rest.undo()

    def rebase(self) -> None:
        """Changes of buffers count from here."""
        self.rest.rebase()
