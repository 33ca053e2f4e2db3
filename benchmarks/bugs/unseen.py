"""Defects that no check was written for: what does a judge find that has not seen them?

Real ones, as engineers make them or other projects had them (`source`: the number in a list of historical defects, or a
sentence), in nine families. Each is a function that breaks a module as it is imported (`benchmarks.bugs.hooks`). A run with
one ends well, and is another run than without. Whatever check fails will do. Another one is a function in one of the files
beside this, and a row here: `python -m benchmarks.bugs NAME` tries it, and it is left as it is, caught or not.
"""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.bugs import unseen_more as m
from benchmarks.bugs import unseen_steps as s
from benchmarks.bugs import unseen_training as t
from benchmarks.bugs.bug import Bug, Patch


class Row(NamedTuple):
    """A line of the table."""

    breaks: str
    source: str
    cell: str
    """Model and mode."""
    module: str
    patch: Patch


def _family(family: str, **rows: Row) -> dict[str, Bug]:
    bugs: dict[str, Bug] = {}
    for name, (breaks, source, cell, module, patch) in rows.items():
        model, mode = cell.split()
        bugs[name] = Bug(f"{family}: {breaks}", "unseen", source, "any", (mode,), {module: patch}, (model,))
    return bugs


NCCL, CPU, MEAN = "ddp.backends.allreduce", "ddp.backends.snapshot", "ddp.replica.weighted_mean"
REPLICA, RESIDENT, VISITS = "ddp.replica.replica", "ddp.data.resident", "ddp.data.epoch_order"
RATES, ZERO1, LOOP, METER = "ddp.replica.rates", "ddp.sharding.zero1", "ddp.engine.loop", "ddp.process.meter"
PACKED, SHARED = "ddp.gradients.step_gradients", "ddp.gradients.exchange"
DIGITS, PARTS = "bench.models.data.noisy_digits", "bench.models.parts"
SUMMARY, SPEED = "ddp.core.summary", "bench.results.analysis.training"
SOLO, SYNC, CADENCE, ASYNC = "mlp solo", "mlp nccl_sync", "mlp nccl_cadence", "mlp cpu_async"
SHARDS, GRAPH, LENET = "mlp zero1", "mlp graph_sync", "lenet nccl_cadence"
RESNET = "resnet_graph nccl_cadence"

UNSEEN: dict[str, Bug] = {
    **_family(
        "data",
        block_reused=Row(
            "the last batch of a block read ahead is its first one again", "B7.15", SYNC, RESIDENT, t.block_reused
        ),
        labels_late=Row(
            "later epochs' first block has labels of the order before",
            "a cache renewed late",
            SOLO,
            RESIDENT,
            t.labels_late,
        ),
        tail_padded=Row(
            "the short last batch is filled with repeats of its last sample", "B03", SOLO, RESIDENT, t.tail_padded
        ),
        split_by_rank=Row("rank 1 trains on half of the test set", "A23", CADENCE, DIGITS, t.split_by_rank),
    ),
    **_family(
        "order",
        order_of_first_epoch=Row("every epoch has the order of the first", "A01", SOLO, VISITS, t.order_of_first_epoch),
        order_of_first_epoch_on_rank=Row(
            "rank 1 goes by the first epoch's order in every epoch",
            "A01, on one rank",
            ASYNC,
            VISITS,
            t.order_of_first_epoch_on_rank,
        ),
        order_of_small_buffer=Row(
            "samples are shuffled in stretches of 1024 of the data set",
            "a small shuffle buffer",
            CADENCE,
            VISITS,
            t.order_of_small_buffer,
        ),
        order_sorted_in_blocks=Row(
            "indices are sorted in stretches of 1024 of the order", "A05", ASYNC, VISITS, t.order_sorted_in_blocks
        ),
        order_of_fixed_seed=Row(
            "the order comes from a fixed seed, whatever the run's", "A19", SYNC, VISITS, t.order_of_fixed_seed
        ),
    ),
    **_family(
        "forward",
        loss_by_nominal_batch=Row(
            "a short batch's loss is divided by the nominal batch size", "B07", SYNC, REPLICA, t.loss_by_nominal_batch
        ),
        forward_narrow_on_rank=Row(
            "rank 1 runs its forward pass in bfloat16", "B9.07", SYNC, REPLICA, t.forward_narrow_on_rank
        ),
        norm_mode_lost=Row(
            "batch norms stay in evaluation mode after an evaluation", "B11", LENET, REPLICA, t.norm_mode_lost
        ),
        norm_momentum_on_rank=Row(
            "rank 1 has another momentum of running statistics", "B21", RESNET, REPLICA, t.norm_momentum_on_rank
        ),
        init_of_fixed_seed=Row(
            "initial parameters come from a fixed seed", "B6.12", SOLO, REPLICA, t.init_of_fixed_seed
        ),
    ),
    **_family(
        "gradient",
        clipped_by_default=Row(
            "gradients are clipped to 1, which nobody asked for",
            "a default taken for a wish",
            SOLO,
            REPLICA,
            s.clipped_by_default,
        ),
        last_gradient_late=Row(
            "the last parameter has the gradient of the step before", "C14", SYNC, PACKED, s.last_gradient_late
        ),
        small_gradients_alone=Row(
            "biases have their owner's gradient instead of the mean", "C24", SHARDS, ZERO1, s.small_gradients_alone
        ),
        gradient_kept_for_log=Row(
            "every 50th gradient is kept and counts in the next step", "C22", CADENCE, REPLICA, s.gradient_kept_for_log
        ),
        narrow_sum=Row("replicas in one process add gradients up in bfloat16", "B9.05", GRAPH, SHARED, s.narrow_sum),
    ),
    **_family(
        "optimizer",
        moments_lost=Row("the optimizer's moments are lost with every epoch", "D11", CADENCE, REPLICA, s.moments_lost),
        correction_restarts=Row(
            "the bias correction begins anew after every average", "D19", CADENCE, NCCL, s.correction_restarts
        ),
        decay_lost=Row(
            "the optimizer steps without its weight decay", "D17", "resnet_graph solo", REPLICA, s.decay_lost
        ),
        betas_of_another=Row(
            "rank 1 has another decay of the second moments", "B5.17", ASYNC, REPLICA, s.betas_of_another
        ),
        shard_tail_unmoved=Row(
            "the last elements of rank 0's shards never move", "B6.20", SHARDS, ZERO1, s.shard_tail_unmoved
        ),
    ),
    **_family(
        "schedule",
        rate_by_epoch=Row("the schedule advances once an epoch", "B5.15", SYNC, REPLICA, s.rate_by_epoch),
        horizon_too_far=Row(
            "the schedule counts one epoch more than there are", "B5.09", "lenet solo", REPLICA, s.horizon_too_far
        ),
        rate_stale_on_rank=Row(
            "rank 1 steps with an old rate and reports the right one", "B5.11", CADENCE, RATES, s.rate_stale_on_rank
        ),
        rate_with_floor=Row("the rate never falls below a tenth", "B5.07", ASYNC, RATES, s.rate_with_floor),
        rate_warmed_up=Row("the rate rises at first, which no recipe says", "D13", SYNC, RATES, s.rate_warmed_up),
    ),
    **_family(
        "average",
        average_by_nominal_batch=Row(
            "ranks weigh by steps times the nominal batch size", "B9.01", CADENCE, NCCL, m.average_by_nominal_batch
        ),
        average_by_last_weights=Row(
            "snapshots weigh by the samples of the round before", "B6.28", ASYNC, CPU, m.average_by_last_weights
        ),
        buffers_of_first_rank=Row(
            "all ranks take rank 0's running statistics", "B17", LENET, NCCL, m.buffers_of_first_rank
        ),
        tail_unwritten=Row(
            "elements behind the last whole 64 are never averaged", "B9.09", ASYNC, CPU, m.tail_unwritten
        ),
        first_twice=Row("the first member counts twice in the running mean", "B6.26", ASYNC, MEAN, m.first_twice),
    ),
    **_family(
        "evaluation",
        mean_of_means=Row("the evaluation is the mean of the batches' means", "B07", SOLO, REPLICA, m.mean_of_means),
        training_mode_on_rank=Row("rank 1 evaluates in training mode", "B11", LENET, REPLICA, m.training_mode_on_rank),
        smoothed_evaluated=Row(
            "a moving average of the averages is evaluated", "B7.19", CADENCE, NCCL, m.smoothed_evaluated
        ),
        ties_are_right=Row(
            "an answer that ties in bfloat16 counts as right",
            "scores compared, not places",
            SYNC,
            PARTS,
            m.ties_are_right,
        ),
        own_statistics_evaluated=Row(
            "ranks evaluate with their own running statistics",
            "B17",
            "lenet cpu_async",
            CPU,
            m.own_statistics_evaluated,
        ),
    ),
    **_family(
        "record",
        loss_of_first_rank=Row(
            "the first rank's training loss is shown as the loss", "B8.09", ASYNC, SUMMARY, m.loss_of_first_rank
        ),
        loss_of_step_before=Row(
            "the loss of a step is that of the step before",
            "a device read a step late",
            SOLO,
            LOOP,
            m.loss_of_step_before,
        ),
        speed_without_waits=Row(
            "samples per second are of the busiest rank's seconds", "B8.05", CADENCE, SPEED, m.speed_without_waits
        ),
        short_slices_dropped=Row(
            "slices under 50 us are left out of the record", "B8.07", SYNC, METER, m.short_slices_dropped
        ),
        rate_averaged=Row("the rate of an epoch is the mean of its reports", "B5.05", SYNC, SUMMARY, m.rate_averaged),
    ),
}
"""Name -> what it is."""
