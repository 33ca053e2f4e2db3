"""Defects of `benchmarks.bugs.unseen` in data, order, forward pass and gradients, by somebody who had not read the checks:
in all engines, on two to four ranks, a user's own models among them.

Each is a function of the module that it breaks, called once it is imported, as in `benchmarks.bugs.bug`.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from benchmarks.bugs.bug import Module, after_init, counted, wrap

# Data


def augmented_alike_each_epoch(gather: Module) -> None:
    """Augment a sample in the same way in every epoch: its stream does not know the epoch."""
    wrap(gather.Gather, "_streams", lambda streams, self, batch, indices: streams(batch._replace(epoch=0), indices))


def short_batches_filled_up(replica: Module) -> None:
    """Fill the short batches at the end of an epoch up with samples of an earlier one, so that all have one shape."""

    def broken(read: Any, self: Any, batch: Any) -> Any:
        tensors = read(batch)
        whole = getattr(self, "whole", tensors)
        if len(tensors[0]) >= len(whole[0]):
            self.whole = tensors
            return tensors
        return tuple(torch.cat([own, more[len(own) :]]) for own, more in zip(tensors, whole, strict=True))

    wrap(replica.Replica, "read", broken)


def noise_of_first_sample(dataset: Module) -> None:
    """Have all samples of a batch draw what its first one draws: readers are seeded by batch."""

    def broken(read: Any, self: Any, wanted: Any, draws: Any) -> Any:
        if draws is not None:
            draws.keys = draws.keys[:1].expand(len(draws.keys))
        return read(wanted, draws)

    wrap(dataset.MapSource, "_read", broken)


# Order


def sampler_of_first_epoch(epoch_order: Module) -> None:
    """Ask a user's sampler for epoch 0 each time."""
    wrap(epoch_order.EpochOrder, "_sampled", lambda sampled, self, epoch: sampled(0))


def passes_in_one_order(epoch_order: Module) -> None:
    """Have all passes of a long epoch in the order of the first one."""

    def broken(make: Any, self: Any, epoch: int) -> Any:
        orders = [self._one(epoch * self.passes)] * self.passes
        return torch.cat(orders)[: self._length]

    wrap(epoch_order.EpochOrder, "_make", broken)


def sorted_for_the_disk(gather: Module) -> None:
    """Read in stretches of 512 samples, each in the order of the file."""

    def broken(indices: Any, self: Any, batch: Any) -> Any:
        chosen = indices(batch)
        if self._visits._shuffle:
            first, last = batch.start // 512 * 512, -(-batch.stop // 512) * 512
            blocks = self._visits(batch.epoch)[first:last].split(512)
            chosen = torch.cat([block.sort().values for block in blocks])[batch.start - first : batch.stop - first]
        return chosen

    wrap(gather.Gather, "indices", broken)


# Forward


def one_mask_for_all_passes(replica: Module) -> None:
    """Seed every pass of a step as its first one: all drop the same units."""

    def broken(draw: Any, self: Any, batch: Any) -> None:
        whole = getattr(self, "whole", batch)
        if batch.epoch == whole.epoch and whole.start < batch.start < whole.stop:
            batch = whole
        self.whole = batch
        draw(batch)

    wrap(replica.Replica, "_draw", broken)


def statistics_of_first_pass(replica: Module) -> None:
    """Move the running statistics of norms once in a step, by the first of its passes."""

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


def first_layer_stays(zero3: Module) -> None:
    """Keep the layer that a step needs first from the step before: it is not fetched again after the optimizer."""

    def first(self: Any) -> Any:
        return next(iter(self._traces[False]), None)

    def free(free: Any, self: Any, unit: Any) -> None:
        if not (self._backward and unit is first(self)):
            free(unit)

    def stop(stop: Any, self: Any) -> None:
        self._active = self._all = False
        for unit in list(self._recent):
            self._free(unit)
        self._backward = False

    wrap(zero3.Zero3, "_free", free)
    wrap(zero3.Zero3, "_stop", stop)


# Gradient


def clipped_by_own_shards(zero1: Module) -> None:
    """Clip by the norm of the shards that a rank has."""

    def broken(clip: Any, self: Any, limit: float) -> None:
        own = [shard.values for shard in self.shards if shard.values.grad is not None]
        torch.nn.utils.clip_grad_norm_(own, limit)

    wrap(zero1.ShardedStep, "clip", broken)


def clipped_before_unscaled(replica: Module) -> None:
    """Clip gradients that still have the factor of the loss."""

    def change(self: Any) -> None:
        ready, clip = self.passes.ready, self._clip

        def broken(optimizer: Any, team: Any) -> bool:
            clip(team)
            done: bool = ready(optimizer, team)
            return done

        self.passes.ready, self._clip = broken, lambda team: None

    after_init(replica.Replica, change)


def unused_get_zeros(step_gradients: Module) -> None:
    """Leave parameters that no rank used a gradient of zeros, by which the optimizer moves them."""
    wrap(step_gradients.StepGradients, "unpack", lambda unpack, self: self._changes.take())


def large_ones_unweighted(owned: Module) -> None:
    """Send a gradient that has a bucket of its own without its rank's weight."""

    def broken(take: Any, self: Any, index: int, gradient: Any) -> None:
        alone, weight = len(self._plan[self._places[index][0]]) == 1, self._weight
        self._weight = 1.0 if alone and weight else weight
        take(index, gradient)
        self._weight = weight

    wrap(owned.OwnedGradients, "_take_in", broken)


def replicas_weigh_alike(accumulate: Module) -> None:
    """Weigh the replicas of a window alike, whatever they trained."""

    def broken(contribute: Any, self: Any, total: int, seen: float) -> float:
        pack, alike = self.gradients.pack, 1.0 / self._job.world_size
        self.gradients.pack = lambda weight: pack(alike if weight else 0.0)
        at: float = contribute(total, seen)
        self.gradients.pack = pack
        return at

    wrap(accumulate.Accumulating, "contribute", broken)


def exchanged_in_first_pass(torch_backend: Module) -> None:
    """Have PyTorch exchange gradients in all passes of a step but the last one."""

    def broken(one_pass: Any, self: Any, last: bool) -> Any:
        return self.module.no_sync() if last else nullcontext()

    wrap(torch_backend.TorchStep, "one_pass", broken)


# Of several


def stopped(replica: Module, at: int) -> None:
    """Have a run end at a step, on the way, unless it goes on from a checkpoint."""

    def broken(step: Any, self: Any, *about: Any) -> Any:
        if self._job.resume is None and counted(self, "stepped") == at:
            raise RuntimeError("ended on the way")
        return step(*about)

    wrap(replica.Replica, "step", broken)
