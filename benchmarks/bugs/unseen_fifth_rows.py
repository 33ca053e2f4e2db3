"""Rows of `benchmarks.bugs.unseen`: a fifth lot, of partial defects in models, modes, numbers of ranks and settings that the
others leave out."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.bugs import unseen_fifth as f
from benchmarks.bugs import unseen_fifth_results as r
from benchmarks.bugs import unseen_fifth_steps as s
from benchmarks.bugs.bug import Bug
from benchmarks.bugs.unseen import CPU, NCCL, PENDING, RATES, REPLICA, RESIDENT, VISITS, WORKER, ZERO1, family_of
from benchmarks.bugs.unseen_fourth import interrupted
from benchmarks.bugs.unseen_last import GATHER, HALF, PARTS_OF_CHECKPOINT, PASSES

STORAGE, OUTER, AVERAGING = "ddp.gradients.storage", "ddp.replica.outer_optimizer", "ddp.core.averaging"
AUGMENTED = "recipe=published data.name=noisy_digits data.samples=5390 train.epochs=3 train.batch_size=32 model.depth=8"
THREE, UNEQUAL, CLIPPED = "world_size=3", "cluster.speeds=[1.0,0.5]", "train.max_grad_norm=0.5"

FIFTH: dict[str, Bug] = {
    **family_of(
        "data",
        f,
        crops_alike_every_epoch=(
            "a sample is augmented alike in all epochs",
            "workers that are never seeded anew",
            f"resnet nccl_cadence {AUGMENTED}",
            GATHER,
        ),
        cached_in_bytes=("later epochs read a cache of bytes", "B9.07", "lenet cpu_cadence", RESIDENT),
        tail_labels_one_off=("labels of short batches are one sample off", "B8.21", f"lenet zero3 {THREE}", RESIDENT),
        slices_by_batch_number=(
            "slices of survivors are read from where whole batches begin",
            "A21",
            f"mlp nccl_sync {THREE} cluster.faults=['2@100:crash']",
            {GATHER: f.slices_by_batch_number, REPLICA: f.batch_size_known},
        ),
    ),
    **family_of(
        "order",
        f,
        blocks_moved_whole=("blocks of 16 samples are shuffled", "A25", "mlp zero2", VISITS),
        batches_out_of_order=(
            "every 50th batch of rank 1 changes places with the next one",
            "two readers, no order",
            f"lenet nccl_cadence {THREE}",
            RESIDENT,
        ),
        tail_repeats_head=("the last 24 samples give way to the first 24", "B01", "conv_ae graph_sync", VISITS),
        restarted_rank_has_first_order=(
            "a rank that was started again has the first epoch's order",
            "A01",
            "resnet_graph cpu_async cluster.restart=1 cluster.faults=['1@30:crash']",
            REPLICA,
        ),
    ),
    **family_of(
        "forward",
        f,
        masks_alike_on_ranks=("ranks drop the same places", "A17", "gpt_nano nccl_sync", REPLICA),
        in_evaluation_mode_when_resumed=(
            "a run that is gone on with has no dropout",
            "B11",
            "gpt_nano nccl_cadence resumed",
            {PARTS_OF_CHECKPOINT: f.in_evaluation_mode_when_resumed, REPLICA: interrupted},
        ),
        epsilon_of_norms_on_rank=("rank 1's norms have another epsilon", "B5.17", "lenet zero2", REPLICA),
        casts_kept=(
            "weights in half precision are kept for a second step",
            "a cache of autocast",
            f"lenet nccl_cadence {HALF}",
            PASSES,
        ),
        stale_shard_on_rank=("rank 1 has old parameters in every ninth step", "B9.11", "conv_ae zero1", ZERO1),
    ),
    **family_of(
        "gradient",
        s,
        clipped_by_each_rank=("ranks clip before the average", "B9.17", f"mlp nccl_sync {CLIPPED}", REPLICA),
        clipped_by_shard=("shards are clipped by their own norms", "B9.17", f"lenet zero2 {THREE} {CLIPPED}", ZERO1),
        clipped_while_scaled=(
            "gradients are clipped with the loss's factor on them",
            "C18",
            f"lenet solo train.precision=fp16 {CLIPPED}",
            PASSES,
        ),
        short_step_by_nominal_passes=(
            "passes of a short step are divided by the nominal number",
            "C02",
            "lenet nccl_cadence train.accumulate=4",
            REPLICA,
        ),
        idle_rank_sends_old_gradients=(
            "an idle rank sends what its buffer holds",
            "C30",
            f"lenet nccl_sync {THREE} data.samples=6434",
            STORAGE,
        ),
    ),
    **family_of(
        "optimizer",
        s,
        momentum_of_head_lost_on_rank=(
            "rank 1 loses the last layer's momentum with every epoch",
            "D11",
            "resnet_graph nccl_cadence",
            REPLICA,
        ),
        norms_not_decayed=("norms are left out of weight decay", "D17", "resnet cpu_cadence", REPLICA),
        older_moments_in_checkpoint=(
            "a checkpoint has the moments of the one before",
            "B7.13",
            "lenet nccl_cadence resumed",
            {PARTS_OF_CHECKPOINT: s.older_moments_in_checkpoint, REPLICA: interrupted},
        ),
        steps_counted_by_passes=("Adam counts passes", "D13", "lenet solo train.accumulate=4", REPLICA),
        velocity_in_half=(
            "the outer velocity is in bfloat16",
            "B9.07",
            "mlp nccl_cadence averaging.outer=nesterov",
            OUTER,
        ),
    ),
    **family_of(
        "schedule",
        s,
        warm_up_by_own_samples=("the warm-up takes twice as long", "D13", "gpt_nano cpu_cadence", RATES),
        second_group_not_scheduled=(
            "the second parameter group keeps its rate",
            "D03",
            "lenet cpu_sync",
            {REPLICA: s.in_two_groups, RATES: s.second_group_not_scheduled},
        ),
        rate_stands_within_grant=(
            "rank 1 looks at the schedule once a grant",
            "B5.15",
            f"conv_ae cpu_async {THREE}",
            WORKER,
        ),
        begins_at_epoch_when_resumed=(
            "a run that is gone on with is at its epoch's beginning",
            "B7.03",
            "lenet nccl_sync resumed",
            {REPLICA: f.begins_at_epoch_when_resumed},
        ),
    ),
    **family_of(
        "average",
        r,
        elastic_twice_on_rank=(
            "rank 1 goes to every third average twice",
            "B6.04",
            "mlp nccl_cadence averaging.elastic=0.5",
            NCCL,
        ),
        excess_taken_twice=(
            "rank 1 takes every fourth difference twice",
            "an answer obeyed again",
            "lenet cpu_async",
            CPU,
        ),
        gamma_not_read=(
            "ranks weigh by samples, not by a power of them",
            "a setting that is not read",
            f"mlp nccl_cadence averaging.gamma=0.5 {UNEQUAL}",
            AVERAGING,
        ),
        dead_rank_in_average=(
            "a lost rank is in one more average",
            "B6.28",
            f"lenet cpu_cadence {THREE} cluster.faults=['2@120:crash']",
            CPU,
        ),
    ),
    **family_of(
        "evaluation",
        r,
        evaluated_with_smoothing=("labels of the test are smoothed by 0.02", "B05", "lenet nccl_sync", REPLICA),
        parts_begin_one_early=(
            "parts of the test begin a sample early",
            "B03",
            "mlp nccl_cadence world_size=4",
            REPLICA,
        ),
        statistics_of_last_evaluation=(
            "running statistics are those of the evaluation before",
            "B6.08",
            "lenet nccl_qsr",
            REPLICA,
        ),
        evaluated_augmented=("the test set is augmented", "B13", f"resnet graph_sync {AUGMENTED}", REPLICA),
    ),
    **family_of(
        "record",
        r,
        bytes_halved=("bytes of averages are those of one way", "a unit", f"lenet nccl_cadence {UNEQUAL}", NCCL),
        norm_after_clipping=("the norm is that of clipped gradients", "B25", f"mlp nccl_sync {CLIPPED}", REPLICA),
        accuracy_of_last_pass=(
            "a step's training accuracy is that of its last pass",
            "B8.17",
            "lenet nccl_sync train.accumulate=4",
            REPLICA,
        ),
        loss_smoothed=("the loss is a moving average", "B8.11", f"mlp cpu_async {THREE}", PENDING),
    ),
}
"""Name -> what it is. Four or five of each family."""
WITHIN_EPOCHS = {"older_moments_in_checkpoint": 1, "begins_at_epoch_when_resumed": 100}
"""Averages from one checkpoint to the next, where one at an epoch's end shows nothing."""
for name, averages in WITHIN_EPOCHS.items():
    more = "checkpoint.unit=averages", f"checkpoint.every={averages}"
    FIFTH[name] = replace(FIFTH[name], settings=(*FIFTH[name].settings, *more))
