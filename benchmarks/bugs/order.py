"""Defects of the order of samples: seeds, epochs, what is read twice."""

from __future__ import annotations

import functools
import os
from typing import Any

import torch

from benchmarks.bugs.bug import EVERY, RANKS, Family, Module, counted, in_place_of, rank, wrap

ORDER = Family("order")
VISITS, REPLICA, GATHER = "ddp.data.epoch_order", "ddp.replica.replica", "ddp.data.gather"


def _made(give: Any) -> Any:
    """Return a patch of orders: `give(module, self, epoch)` in place of what a shuffled epoch has."""

    @functools.wraps(give)
    def patch(visits: Module) -> None:
        def broken(make: Any, self: Any, epoch: int) -> Any:
            return give(visits, self, epoch)[: self._length] if self._shuffle else make(epoch)

        wrap(visits.EpochOrder, "_make", broken)

    return patch


@ORDER.bug(VISITS, "data", EVERY, "samples come in the same order in every epoch", "A01")
def same_order(visits: Module) -> None:
    _made(lambda module, self, epoch: module.order(self.seed, 0, self._size))(visits)


@ORDER.bug(VISITS, "data", EVERY, "samples are not shuffled", "A05")
def not_shuffled(visits: Module) -> None:
    _made(lambda module, self, epoch: module.torch.arange(self._size))(visits)


@ORDER.bug(VISITS, "data", EVERY, "the order ignores the seed", "issue")
def seed_ignored(visits: Module) -> None:
    _made(lambda module, self, epoch: module.order(0x5EED, epoch, self._size))(visits)


@ORDER.bug(VISITS, "data", EVERY, "every second epoch has the order of the one before", "B7.05")
def epochs_in_pairs(visits: Module) -> None:
    _made(lambda module, self, epoch: module.order(self.seed, epoch - epoch % 2, self._size))(visits)


@ORDER.bug(VISITS, "data", EVERY, "seeds and epochs are added up: seed 1 begins where seed 0 goes on", "B7.03")
def seed_plus_epoch(visits: Module) -> None:
    _made(lambda module, self, epoch: module.order(self.seed + epoch, 0, self._size))(visits)


@ORDER.bug(VISITS, "data", EVERY, "samples are shuffled in stretches of 1,000 alone", "A25")
@_made
def shuffled_in_stretches(module: Any, self: Any, epoch: int) -> Any:
    order = module.order(self.seed, epoch, self._size)
    return order[(order // 1000).argsort(stable=True)]


@ORDER.bug(VISITS, "visits", RANKS, "every rank shuffles for itself: shards overlap", "A03")
def order_per_rank(visits: Module) -> None:
    _made(lambda module, self, epoch: module.order(self.seed + rank(), epoch, self._size))(visits)


@ORDER.bug(VISITS, "data", EVERY, "the order is by chance, not the seed's", "B9.21")
def order_by_chance(visits: Module) -> None:
    chance = int.from_bytes(os.urandom(4), "little")
    _made(lambda module, self, epoch: module.order(chance, epoch, self._size))(visits)


@ORDER.bug(REPLICA, "visits", EVERY, "every second batch is trained twice, in place of the one behind it", "issue")
@in_place_of("Replica.__init__")
def batch_twice(make: Any, self: Any, *made_of: Any) -> None:
    make(*made_of)
    indices = self.feed.gather.indices

    def earlier(batch: Any) -> Any:
        size = batch.samples
        late = counted(self, "batch") % 2 == 1 and batch.start >= size
        return indices(batch._replace(start=batch.start - size, stop=batch.stop - size) if late else batch)

    self.feed.gather.indices = earlier
    self.feed.gather.separable = False
    self.feed._most = 1


@ORDER.bug(GATHER, "audit", EVERY, "batches begin a sample late", "B5.09")
@in_place_of("Gather.indices")
def one_late(indices: Any, self: Any, batch: Any) -> Any:
    found = indices(batch)
    order = self._order[1]
    if not self._visits.shuffled:
        return found
    places = torch.arange(batch.start + 1, batch.stop + 1) % len(order)
    return order[places.to(order.device)]
