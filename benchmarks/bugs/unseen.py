"""Defects that no check was written for: what does a judge find that has not seen them?

Real ones, as engineers make them or other projects had them (`source`: the number in a list of historical defects, or a
sentence), in nine families. Each is a function that breaks a module as it is imported (`benchmarks.bugs.hooks`). A run with
one ends well, and is another run than without. Whatever check fails will do. Another one is a function in one of the files
beside this, under `@LOT.bug`: `python -m benchmarks.bugs NAME` tries it, and it is left as it is, caught or not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType, ModuleType

from benchmarks.bugs import unseen_more as m
from benchmarks.bugs import unseen_steps as s
from benchmarks.bugs import unseen_third as third
from benchmarks.bugs import unseen_third_steps as later
from benchmarks.bugs import unseen_training as t
from benchmarks.bugs.bug import Bug, Patch

Row = tuple[str, str, str, str | dict[str, Patch]]
"""What is broken, source, cell (model, mode and settings), module; or by module the patches, where several are broken.
`resumed` among the settings, once or more: the run stops and is gone on with; `resumed:SETTING`: with that."""
RESUMED, RESUMING = "resumed", ["checkpoint.spacing_s=0", "cluster.tolerate_loss=false"]


def entered(family: str, breaks: str, source: str, cell: str, broken: Mapping[str, Patch]) -> Bug:
    """Return a bug that whatever check may find."""
    model, mode, *settings = cell.split()
    resumed = tuple(tuple(word.split(":")[1:]) for word in settings if word.startswith(RESUMED))
    settings = [*RESUMING, *(word for word in settings if not word.startswith(RESUMED))] if resumed else settings
    bug = Bug(f"{family}: {breaks}", "unseen", source, "any", (mode,), broken, (model,))
    return replace(bug, settings=tuple(settings), resumed=resumed)


def family_of(family: str, patches: ModuleType, /, **rows: Row) -> dict[str, Bug]:
    """Return the bugs of a family by name, which is that of their patch in a file."""
    bugs: dict[str, Bug] = {}
    for name, (breaks, source, cell, module) in rows.items():
        broken: dict[str, Patch] = {module: getattr(patches, name)} if isinstance(module, str) else module
        bugs[name] = entered(family, breaks, source, cell, broken)
    return bugs


@dataclass(frozen=True)
class Lot:
    """The unseen bugs of a file, by name."""

    bugs: dict[str, Bug] = field(default_factory=dict)

    def bug(
        self,
        family: str,
        breaks: str,
        source: str,
        cell: str,
        module: str,
        more: Mapping[str, Patch] = MappingProxyType({}),
    ) -> Callable[[Patch], Patch]:
        """Enter the patch that follows, under its name. `cell`: model, mode and settings; `more`: other modules' patches."""

        def enter(patch: Patch) -> Patch:
            assert patch.__name__ not in self.bugs, patch.__name__
            self.bugs[patch.__name__] = entered(family, breaks, source, cell, {module: patch, **more})
            return patch

        return enter


NCCL, CPU, MEAN = "ddp.backends.allreduce", "ddp.backends.snapshot", "ddp.replica.weighted_mean"
REPLICA, RESIDENT, VISITS = "ddp.replica.replica", "ddp.data.resident", "ddp.data.epoch_order"
PENDING = "ddp.engine.pending"
RATES, ZERO1, LOOP, METER = "ddp.replica.learning_rates", "ddp.sharding.zero1", "ddp.engine.loop", "ddp.process.meter"
PACKED, SHARED = "ddp.gradients.step_gradients", "ddp.gradients.exchange"
DIGITS, PARTS = "bench.models.data.noisy_digits", "bench.models.parts"
SUMMARY, SPEED = "ddp.core.summary", "bench.results.analysis.training"
SOLO, SYNC, CADENCE, ASYNC = "mlp solo", "mlp nccl_sync", "mlp nccl_cadence", "mlp cpu_async"
SHARDS, GRAPH, LENET = "mlp zero1", "mlp graph_sync", "lenet nccl_cadence"
RESNET = "resnet_graph nccl_cadence"

UNSEEN: dict[str, Bug] = {
    **family_of(
        "data",
        t,
        block_reused=("the last batch of a block read ahead is its first one again", "B7.15", SYNC, RESIDENT),
        labels_late=(
            "later epochs' first block has labels of the order before",
            "a cache renewed late",
            SOLO,
            RESIDENT,
        ),
        tail_padded=("the short last batch is filled with repeats of its last sample", "B03", SOLO, RESIDENT),
        split_by_rank=("rank 1 trains on half of the test set", "A23", CADENCE, DIGITS),
    ),
    **family_of(
        "order",
        t,
        order_of_first_epoch=("every epoch has the order of the first", "A01", SOLO, VISITS),
        order_of_first_epoch_on_rank=(
            "rank 1 goes by the first epoch's order in every epoch",
            "A01, on one rank",
            ASYNC,
            VISITS,
        ),
        order_of_small_buffer=(
            "samples are shuffled in stretches of 1024 of the data set",
            "a small shuffle buffer",
            CADENCE,
            VISITS,
        ),
        order_sorted_in_blocks=("indices are sorted in stretches of 1024 of the order", "A05", ASYNC, VISITS),
        order_of_fixed_seed=("the order comes from a fixed seed, whatever the run's", "A19", SYNC, VISITS),
    ),
    **family_of(
        "forward",
        t,
        loss_by_nominal_batch=("a short batch's loss is divided by the nominal batch size", "B07", SYNC, REPLICA),
        forward_narrow_on_rank=("rank 1 runs its forward pass in bfloat16", "B9.07", SYNC, REPLICA),
        norm_mode_lost=("batch norms stay in evaluation mode after an evaluation", "B11", LENET, REPLICA),
        norm_momentum_on_rank=("rank 1 has another momentum of running statistics", "B21", RESNET, REPLICA),
        init_of_fixed_seed=("initial parameters come from a fixed seed", "B6.12", SOLO, REPLICA),
    ),
    **family_of(
        "gradient",
        s,
        clipped_by_default=(
            "gradients are clipped to 1, which nobody asked for",
            "a default taken for a wish",
            SOLO,
            REPLICA,
        ),
        last_gradient_late=("the last parameter has the gradient of the step before", "C14", SYNC, PACKED),
        small_gradients_alone=("biases have their owner's gradient instead of the mean", "C24", SHARDS, ZERO1),
        gradient_kept_for_log=("every 50th gradient is kept and counts in the next step", "C22", CADENCE, REPLICA),
        narrow_sum=("replicas in one process add gradients up in bfloat16", "B9.05", GRAPH, SHARED),
    ),
    **family_of(
        "optimizer",
        s,
        moments_lost=("the optimizer's moments are lost with every epoch", "D11", CADENCE, REPLICA),
        correction_restarts=("the bias correction begins anew after every average", "D19", CADENCE, NCCL),
        decay_lost=("the optimizer steps without its weight decay", "D17", "resnet_graph solo", REPLICA),
        betas_of_another=("rank 1 has another decay of the second moments", "B5.17", ASYNC, REPLICA),
        shard_tail_unmoved=("the last elements of rank 0's shards never move", "B6.20", SHARDS, ZERO1),
    ),
    **family_of(
        "schedule",
        s,
        rate_by_epoch=("the schedule advances once an epoch", "B5.15", SYNC, REPLICA),
        horizon_too_far=("the schedule counts one epoch more than there are", "B5.09", "lenet solo", REPLICA),
        rate_stale_on_rank=("rank 1 steps with an old rate and reports the right one", "B5.11", CADENCE, RATES),
        rate_with_floor=("the rate never falls below a tenth", "B5.07", ASYNC, RATES),
        rate_warmed_up=("the rate rises at first, which no recipe says", "D13", SYNC, RATES),
    ),
    **family_of(
        "average",
        m,
        average_by_nominal_batch=("ranks weigh by steps times the nominal batch size", "B9.01", CADENCE, NCCL),
        average_by_last_weights=("snapshots weigh by the samples of the round before", "B6.28", ASYNC, CPU),
        buffers_of_first_rank=("all ranks take rank 0's running statistics", "B17", LENET, NCCL),
        tail_unwritten=("elements behind the last whole 64 are never averaged", "B9.09", ASYNC, CPU),
        first_twice=("the first member counts twice in the running mean", "B6.26", ASYNC, MEAN),
    ),
    **family_of(
        "evaluation",
        m,
        mean_of_means=("the evaluation is the mean of the batches' means", "B07", SOLO, REPLICA),
        training_mode_on_rank=("rank 1 evaluates in training mode", "B11", LENET, REPLICA),
        smoothed_evaluated=("a moving average of the averages is evaluated", "B7.19", CADENCE, NCCL),
        ties_are_right=(
            "an answer that ties in eight bits counts as right",
            "scores compared, not places",
            SYNC,
            PARTS,
        ),
        own_statistics_evaluated=("ranks evaluate with their own running statistics", "B17", "lenet cpu_async", CPU),
    ),
    **family_of(
        "record",
        m,
        loss_of_first_rank=("the first rank's training loss is shown as the loss", "B8.09", ASYNC, SUMMARY),
        loss_of_step_before=(
            "the loss of a step is that of the step before",
            "a device read a step late",
            SOLO,
            PENDING,
        ),
        speed_without_waits=("samples per second are of the busiest rank's seconds", "B8.05", CADENCE, SPEED),
        short_slices_dropped=("slices under 50 us are left out of the record", "B8.07", SYNC, METER),
        rate_averaged=("the rate of an epoch is the mean of its reports", "B5.05", SYNC, SUMMARY),
    ),
}
"""Name -> what it is."""

OWNED, WORKER = "ddp.gradients.owned", "ddp.core.worker"
ACTIONS, ACCUMULATE = "ddp.core.round_actions", "ddp.graph.accumulate"

THIRD: dict[str, Bug] = {
    **family_of(
        "data",
        third,
        torn_while_read=("half of every 97th batch's images are of the batch before", "C14", ASYNC, RESIDENT),
        first_batch_cached=("every epoch begins with the first epoch's first batch", "B7.15", SOLO, RESIDENT),
        normalised_by_itself=("the test set is normalised by its own mean", "statistics of the split", SYNC, DIGITS),
    ),
    **family_of(
        "order",
        third,
        every_second_backwards=("every second epoch is the one before, backwards", "A01", CADENCE, VISITS),
        tail_not_shuffled=("what fills no whole part of the data set ends every epoch", "A25", SOLO, VISITS),
        epochs_from_one=("epochs are counted from 1", "B7.05", "mlp torch_ddp", VISITS),
    ),
    **family_of(
        "forward",
        third,
        forward_before_average=(
            "the first step after an average sees the weights before it",
            "B6.02",
            CADENCE,
            {NCCL: third.laid_before_average, REPLICA: third.forward_before_average},
        ),
        activation_capped=("rank 1 has another activation, cut at 6", "a compiled kernel", ASYNC, REPLICA),
        logged_in_evaluation_mode=("every 50th step is in evaluation mode", "B11", "lenet nccl_sync", REPLICA),
    ),
    **family_of(
        "gradient",
        third,
        kept_over_average=(
            "the last gradients before an average count again behind it",
            "C22",
            ASYNC,
            {CPU: third.left_at_average, REPLICA: third.kept_over_average},
        ),
        straggler_left_out=("gradients of a rank that is late are left out", "a backup of slow workers", SYNC, PACKED),
        shard_edge_alone=("the last line of what a rank owns has its own gradient", "B6.20", "mlp zero2", OWNED),
    ),
    **family_of(
        "optimizer",
        later,
        amsgrad_left_on=("Adam divides by the largest second moment", "another recipe's", SHARDS, REPLICA),
        other_epsilon=("rank 1 has another framework's epsilon", "B5.17", ASYNC, REPLICA),
        last_step_of_epoch_lost=("the last step of an epoch is left out", "A15", SOLO, REPLICA),
    ),
    **family_of(
        "schedule",
        later,
        rate_a_step_late=("steps have the rate of the step before", "B5.09", SYNC, RATES),
        tested_counted_as_seen=("a rank counts what it evaluates as seen", "B5.05", CADENCE, REPLICA),
        pace_of_one=("a rank counts its own samples alone within a grant", "B5.03", CADENCE, WORKER),
    ),
    **family_of(
        "average",
        later,
        shares_by_arrival=("snapshots weigh by samples in the order of arrival", "B8.15", ASYNC, ACTIONS),
        far_values_left=("values that are far from their average are left", "a guard against damage", CADENCE, NCCL),
        window_shares_late=("windows weigh by the samples of the one before", "B6.28", "mlp graph_cadence", ACCUMULATE),
    ),
    **family_of(
        "evaluation",
        later,
        padded_to_whole_batches=("repeats that fill up the last batch count", "B01", SYNC, REPLICA),
        early_epochs_on_part=("all epochs but the last are evaluated on a part", "a saving", CADENCE, REPLICA),
        last_copy_evaluated=("a copy of up to 100 steps before is evaluated", "B7.13", SOLO, REPLICA),
    ),
    **family_of(
        "record",
        later,
        divergence_squared=("distances of replicas are reported as squares", "a unit", ASYNC, CPU),
        evaluation_time_twice=("seconds of evaluation are reported twice", "B8.05", SYNC, LOOP),
        memory_in_kib=("peak memory is reported in KiB", "a unit", SOLO, "ddp.engine.reports"),
    ),
}
"""Those that were tried last."""
NAMED = {
    "data": "torn_while_read first_batch_cached normalised_by_itself every_second_backwards tail_not_shuffled "
    "epochs_from_one",
    "audit": "forward_before_average activation_capped logged_in_evaluation_mode kept_over_average amsgrad_left_on "
    "other_epsilon last_step_of_epoch_lost rate_a_step_late tested_counted_as_seen padded_to_whole_batches "
    "early_epochs_on_part last_copy_evaluated",
    "average": "straggler_left_out shard_edge_alone shares_by_arrival far_values_left window_shares_late divergence_squared",
    "rate": "pace_of_one",
    "breakdown": "evaluation_time_twice",
    "peak_memory": "memory_in_kib",
}
"""The check that has caught each of them."""
THIRD = {name: replace(THIRD[name], check=check) for check, names in NAMED.items() for name in names.split()}
UNSEEN |= THIRD
