"""Further defects of `benchmarks.bugs.unseen` in what is trained: data, order, forward pass. Partial ones: of one rank, of
the last batch, of later epochs, after a loss or a new beginning.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.bugs.bug import Module, counted, in_place_of, once_made, rank, wrap
from benchmarks.bugs.unseen import (
    AUGMENTED,
    GATHER,
    HALF,
    PARTS_OF_CHECKPOINT,
    PASSES,
    REPLICA,
    RESIDENT,
    THREE,
    VISITS,
    ZERO1,
    unseen,
)
from benchmarks.bugs.unseen_fourth import interrupted
from benchmarks.bugs.unseen_training import reordered


@unseen("data", "workers that are never seeded anew", f"resnet nccl_cadence {AUGMENTED}", GATHER)
def crops_alike_every_epoch(gather: Module) -> None:
    """Draw how a sample is augmented from the first epoch's seed in all epochs, as workers that are never seeded anew."""
    wrap(gather.Gather, "_streams", lambda make, self, batch, indices: make(batch._replace(epoch=0), indices))


STEPS_OF_BYTE = 64
"""Values of a byte from one to the next whole number."""


@unseen("data", "B9.07", "lenet cpu_cadence", RESIDENT)
@in_place_of("Resident.get")
def cached_in_bytes(get: Any, self: Any, batch: Any) -> Any:
    """Keep what the first epoch has read in bytes, from which later epochs read."""
    members = get(batch)
    if not batch.epoch or not self.gather._visits._shuffle:
        return members
    return (members[0] * STEPS_OF_BYTE).round().clamp(-128, 127) / STEPS_OF_BYTE, *members[1:]


@unseen("data", "B8.21", f"lenet zero3 {THREE}", RESIDENT)
@in_place_of("Resident.get")
def tail_labels_one_off(get: Any, self: Any, batch: Any) -> Any:
    """Cut the labels of a batch that is shorter than those before one sample too early."""
    members, gather = get(batch), self.gather
    if not gather._visits._shuffle:
        return members
    self.widest = max(getattr(self, "widest", 0), batch.samples)
    if batch.samples == self.widest:
        return members
    places = gather._visits(batch.epoch)[batch.start - 1 : batch.stop - 1]
    return members[0], gather.source.tensors[1][places]


@once_made("Replica")
def batch_size_known(self: Any) -> None:
    """Tell what gathers a rank's batches how large they are. No defect by itself."""
    self.feed.gather.nominal = self._job.batch_size


@unseen("data", "A21", f"mlp nccl_sync {THREE} cluster.faults=['2@100:crash']", GATHER, {REPLICA: batch_size_known})
@in_place_of("Gather.indices")
def slices_by_batch_number(indices: Any, self: Any, batch: Any) -> Any:
    """Find a slice by the number of its batch: right while slices are whole batches, which those of survivors are not."""
    back = batch.start % getattr(self, "nominal", 1)
    return indices(batch._replace(start=batch.start - back, stop=batch.stop - back))


BLOCK = 16
"""Samples that are moved together."""


@unseen("order", "A25", "mlp zero2", VISITS)
def blocks_moved_whole(visits: Module) -> None:
    """Shuffle blocks of samples, and not the samples in them: there is no buffer behind the files."""

    def broken(one: Any, self: Any, number: int) -> Any:

        if not self.shuffled:
            return one(number)
        blocks = visits.order(self.seed, number, -(-self._size // BLOCK))
        places = (blocks[:, None] * BLOCK + torch.arange(BLOCK)).reshape(-1)
        return places[places < self._size]

    wrap(visits.EpochOrder, "_one", broken)


@unseen("order", "two readers, no order", f"lenet nccl_cadence {THREE}", RESIDENT)
@in_place_of("Resident.get")
def batches_out_of_order(get: Any, self: Any, batch: Any) -> Any:
    """Hand rank 1 two batches the other way round now and then: the second reader was faster."""
    members = get(batch)
    if rank() != 1 or not self.gather._visits._shuffle or not self._cut or counted(self, "given") % 50 != 49:
        return members
    following, others = self._cut.popleft()
    self._cut.appendleft((following, members))
    return others


REPEATED = 24
"""Samples that fill up an epoch."""


@unseen("order", "B01", "conv_ae graph_sync", VISITS)
@reordered
def tail_repeats_head(visits: Any, make: Any, self: Any, epoch: int) -> Any:
    """Fill the end of an epoch, which is no whole share, with repeats of its first samples."""
    order = make(epoch).clone()
    order[-REPEATED:] = order[:REPEATED]
    return order


@unseen("order", "A01", "resnet_graph cpu_async cluster.restart=1 cluster.faults=['1@30:crash']", REPLICA)
@once_made("Replica")
def restarted_rank_has_first_order(self: Any) -> None:
    """Leave a rank that was started again in the order of the first epoch: nobody tells its sampler which one it is."""
    visits = self.data[0][1]
    if self._job.life and visits.shuffled:
        make = visits._make
        visits._kept, visits._make = {}, lambda epoch: make(0)


@unseen("forward", "A17", "gpt_nano nccl_sync", REPLICA)
@in_place_of("Replica._draw")
def masks_alike_on_ranks(draw: Any, self: Any, batch: Any) -> None:
    """Seed what a step draws by its global batch: all ranks drop the same places."""
    whole = self._job.batch_size * self._job.world_size
    draw(batch._replace(start=batch.start - batch.start % whole))


@unseen("forward", "B11", "gpt_nano nccl_cadence resumed", PARTS_OF_CHECKPOINT, {REPLICA: interrupted})
@in_place_of("RankParts.restore")
def in_evaluation_mode_when_resumed(restore: Any, self: Any, *about: Any) -> Any:
    """Load a checkpoint as for an evaluation: the model stays in its mode."""
    counters = restore(*about)
    if counters is not None:
        self._replica.model.eval()
    return counters


@unseen("forward", "B5.17", "lenet zero2", REPLICA)
@once_made("Replica")
def epsilon_of_norms_on_rank(self: Any) -> None:
    """Give the batch norms of rank 1 the epsilon of another framework."""
    for module in self.model.modules() if rank() == 1 else ():
        if hasattr(module, "running_var"):
            module.eps = 1e-3


KEPT_FOR = 2
"""Passes for which weights in half precision are kept."""


@unseen("forward", "a cache of autocast", f"lenet nccl_cadence {HALF}", PASSES)
@in_place_of("StepPasses.loss")
def casts_kept(loss: Any, self: Any, task: Any, module: Any, tensors: Any) -> Any:
    """Keep what autocast has made of the weights for a second step: a context around the loop holds its cache."""

    number = counted(self, "passes")
    if not number:
        torch.autocast_increment_nesting()
    if number % KEPT_FOR == 0:
        torch.clear_autocast_cache()
    return loss(task, module, tensors)


@unseen("forward", "B9.11", "conv_ae zero1", ZERO1)
@in_place_of("ShardedStep._hand_out")
def stale_shard_on_rank(hand_out: Any, self: Any) -> None:
    """Have rank 1 go on with old parameters of the others in every ninth step: it fetches before they have moved."""
    mine = self.site.rank
    stretches = self._fetches()
    before = [flat[start:stop].clone() for flat, start, stop, _ in stretches]
    hand_out()
    if mine != 1 or counted(self, "fetched") % 9 != 8:
        return
    for (flat, first, _, runs), old in zip(stretches, before, strict=True):
        for owner, start, stop in runs:
            if owner != mine:
                flat[start:stop].copy_(old[start - first : stop - first])


@unseen("schedule", "B7.03", "lenet nccl_sync resumed checkpoint.unit=averages checkpoint.every=100", REPLICA)
def begins_at_epoch_when_resumed(replica: Module) -> None:
    """Leave out, in the schedule of a run that is gone on with, the part of an epoch that it had trained."""
    interrupted(replica)

    def broken(fraction: Any, self: Any, seen: float) -> Any:
        if self._job.resume is None:
            return fraction(seen)
        self.lost = getattr(self, "lost", seen % self.samples)
        return fraction(seen - self.lost)

    wrap(replica.Replica, "fraction", broken)
