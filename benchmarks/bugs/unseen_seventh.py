"""Defects of `benchmarks.bugs.unseen` in data, order, forward pass and gradients, by somebody who had not read the checks:
in all engines, on two to four ranks, a user's own models among them.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.bugs.bug import Module, counted, in_place_of, wrap
from benchmarks.bugs.unseen import ACCUMULATE, OWNED, PACKED, REPLICA, VISITS, unseen


@unseen("data", "B01", "conv_ae nccl_sync world_size=4 data.samples=1000", REPLICA)
@in_place_of("Replica.read")
def short_batches_filled_up(read: Any, self: Any, batch: Any) -> Any:
    """Short batches are filled up with earlier samples. Fill the short batches at the end of an epoch up with samples
    of an earlier one, so that all have one shape."""
    tensors = read(batch)
    whole = getattr(self, "whole", tensors)
    if len(tensors[0]) >= len(whole[0]):
        self.whole = tensors
        return tensors
    return tuple(torch.cat([own, more[len(own) :]]) for own, more in zip(tensors, whole, strict=True))


@unseen("data", "A17", "benchmarks.bugs.own_noisy cpu_cadence", "ddp.data.dataset")
@in_place_of("MapSource._read")
def noise_of_first_sample(read: Any, self: Any, wanted: Any, draws: Any) -> Any:
    """All samples of a batch draw the same noise. Have all samples of a batch draw what its first one draws: readers
    are seeded by batch."""
    if draws is not None:
        draws.keys = draws.keys[:1].expand(len(draws.keys))
    return read(wanted, draws)


@unseen("order", "A01", "benchmarks.bugs.own_sampled nccl_sync", VISITS)
def sampler_of_first_epoch(epoch_order: Module) -> None:
    """A sampler is asked for epoch 0 alone. Ask a user's sampler for epoch 0 each time."""
    wrap(epoch_order.EpochOrder, "_sampled", lambda sampled, self, epoch: sampled(0))


@unseen("order", "A01", "mlp nccl_cadence world_size=3 train.steps=1600", VISITS)
@in_place_of("EpochOrder._make")
def passes_in_one_order(make: Any, self: Any, epoch: int) -> Any:
    """Passes of a long epoch are in one order. Have all passes of a long epoch in the order of the first one."""
    orders = [self._one(epoch * self.passes)] * self.passes
    return torch.cat(orders)[: self._length]


@unseen("forward", "A17", "gpt_nano nccl_sync train.accumulate=2", REPLICA)
@in_place_of("Replica._draw")
def one_mask_for_all_passes(draw: Any, self: Any, batch: Any) -> None:
    """Passes of a step drop the same units. Seed every pass of a step as its first one: all drop the same units."""
    whole = getattr(self, "whole", batch)
    if batch.epoch == whole.epoch and whole.start < batch.start < whole.stop:
        batch = whole
    self.whole = batch
    draw(batch)


@unseen("forward", "B21", "lenet nccl_sync train.accumulate=2", REPLICA)
def statistics_of_first_pass(replica: Module) -> None:
    """Norms learn from a step's first pass. Move the running statistics of norms once in a step, by the first of its
    passes."""

    def broken(accumulate: Any, self: Any, *about: Any) -> Any:
        self.passed = 0
        return accumulate(*about)

    def one(gradients: Any, self: Any, *about: Any) -> Any:
        norms = [module for module in self.model.modules() if hasattr(module, "running_var")]
        kept = [module.momentum for module in norms]
        for module in norms if about[-1] and self.passed else ():
            module.momentum = 0.0
        done = gradients(*about)
        self.passed = getattr(self, "passed", 0) + 1
        for module, momentum in zip(norms, kept, strict=True):
            module.momentum = momentum
        return done

    wrap(replica.Replica, "_accumulate", broken)
    wrap(replica.Replica, "_gradients", one)


@unseen("gradient", "C10", "benchmarks.bugs.own_skipping nccl_sync", PACKED)
def unused_get_zeros(step_gradients: Module) -> None:
    """Unused parameters have gradients of zeros. Leave parameters that no rank used a gradient of zeros, by which the
    optimizer moves them."""
    wrap(step_gradients.StepGradients, "unpack", lambda unpack, self: self._changes.take())


@unseen("gradient", "B6.18", "resnet_graph zero2", OWNED)
@in_place_of("OwnedGradients._take_in")
def large_ones_unweighted(take: Any, self: Any, index: int, gradient: Any) -> None:
    """Gradients with a bucket of their own are not weighed. Send a gradient that has a bucket of its own without its
    rank's weight."""
    alone, weight = len(self._plan[self._places[index][0]]) == 1, self._weight
    self._weight = 1.0 if alone and weight else weight
    take(index, gradient)
    self._weight = weight


@unseen("gradient", "B9.01", "mlp graph_cadence cluster.speeds=[1.0,0.4]", ACCUMULATE)
@in_place_of("Accumulating.contribute")
def replicas_weigh_alike(contribute: Any, self: Any, total: int, seen: float) -> float:
    """Unequal replicas weigh alike. Weigh the replicas of a window alike, whatever they trained."""
    pack, alike = self.gradients.pack, 1.0 / self._job.world_size
    self.gradients.pack = lambda weight: pack(alike if weight else 0.0)
    at: float = contribute(total, seen)
    self.gradients.pack = pack
    return at


# Of several


def stopped(replica: Module, at: int) -> None:
    """Have a run end at a step, on the way, unless it goes on from a checkpoint."""

    def broken(step: Any, self: Any, *about: Any) -> Any:
        if self._job.resume is None and counted(self, "stepped") == at:
            raise RuntimeError("ended on the way")
        return step(*about)

    wrap(replica.Replica, "step", broken)
