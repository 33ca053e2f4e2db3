"""Rows of `benchmarks.bugs.unseen`: a sixth lot, written by somebody who had read the checks and looked for their gaps."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.bugs import unseen_sixth as f
from benchmarks.bugs import unseen_sixth_results as r
from benchmarks.bugs.bug import Bug
from benchmarks.bugs.unseen import CPU, LOOP, NCCL, PARTS, PENDING, REPLICA, family_of
from benchmarks.bugs.unseen_fifth_rows import THREE, UNEQUAL
from benchmarks.bugs.unseen_fourth import interrupted
from benchmarks.bugs.unseen_last import AVERAGE, GATHER, PARTS_OF_CHECKPOINT

STREAMING, LOCAL, RANK = "ddp.data.streaming", "ddp.backends.torch_local_sgd", "ddp.engine.rank"
LOST = f"{THREE} cluster.faults=['2@120:crash']"
AGAIN = "cluster.restart=1 cluster.faults=['1@60:crash']"
SAVED = "checkpoint.unit=averages checkpoint.every=3"

SIXTH: dict[str, Bug] = {
    **family_of(
        "data",
        f,
        readers_share_memory=(
            "every 40th batch that is read ahead is the one before it",
            "C14",
            "lenet nccl_sync loader.kind=streaming",
            STREAMING,
        ),
        survivors_read_a_batch_on=(
            "what a lost rank leaves is read from a batch further on",
            "A21",
            f"mlp cpu_async {LOST}",
            GATHER,
        ),
    ),
    **family_of(
        "order",
        f,
        next_order_early=("rank 1 ends epochs in the next one's order", "A07", "mlp cpu_async", GATHER),
        restarts_at_epoch=("the rest of an epoch is its beginning again", "A09", "mlp nccl_sync resumed", REPLICA),
    ),
    **family_of(
        "forward",
        f,
        dropout_of_setup=("a set-up drops twice as much", "B5.17", "gpt_nano nccl_sync", "bench.models.gpt_nano"),
        epsilon_of_setup=("a set-up's norms have another epsilon", "B5.17", "lenet nccl_cadence", "bench.models.lenet"),
        statistics_stand_when_resumed=(
            "rank 1's running statistics stand when a run goes on",
            "B21",
            "lenet cpu_async resumed",
            REPLICA,
        ),
    ),
    **family_of(
        "gradient",
        f,
        short_batch_by_nominal=("a short global batch counts as a whole one", "C02", f"mlp nccl_sync {THREE}", AVERAGE),
        doubled_now_and_then=("gradients of every 400th step are doubled", "C22", "mlp nccl_sync", AVERAGE),
        passes_added_in_half=("passes add up in bfloat16", "B9.05", "lenet solo train.accumulate=4", REPLICA),
        divided_by_those_who_began=(
            "a rank weighs as one of three when two are left",
            "B6.24",
            f"lenet nccl_sync {LOST}",
            AVERAGE,
        ),
    ),
    **family_of(
        "optimizer",
        f,
        decay_of_setup=("a set-up has no weight decay", "D17", "resnet solo", "bench.models.resnet"),
    ),
    **family_of(
        "optimizer",
        r,
        moments_spoilt_after_checkpoint=(
            "moments are rounded once they are written",
            "B9.07",
            f"mlp nccl_cadence {SAVED}",
            PARTS_OF_CHECKPOINT,
        ),
        velocity_lost_when_resumed=(
            "the outer velocity is lost when a run goes on",
            "B7.17",
            "mlp nccl_cadence resumed",
            {PARTS_OF_CHECKPOINT: r.velocity_lost_when_resumed, REPLICA: interrupted},
        ),
        moments_averaged_alike=(
            "moments of all ranks weigh alike",
            "B9.01",
            f"mlp cpu_cadence averaging.optimizer_state=true {UNEQUAL}",
            CPU,
        ),
    ),
    **family_of(
        "schedule",
        f,
        schedule_of_setup=("half a cosine ends at a fiftieth", "B5.07", "mlp nccl_cadence", PARTS),
    ),
    **family_of(
        "schedule",
        r,
        warmed_up_again_when_resumed=("a run that goes on warms up again", "B5.09", "lenet nccl_sync resumed", REPLICA),
        rate_of_own_life=(
            "a rank that is started again begins its schedule",
            "B5.15",
            f"mlp cpu_async {AGAIN}",
            REPLICA,
        ),
    ),
    **family_of(
        "average",
        r,
        contribution_by_nominal_batch=("a rank brings in nominal batches", "B9.01", "mlp nccl_cadence", LOOP),
        unwatched_in_half=("snapshots that nobody sketches are rounded", "B9.07", "mlp cpu_sync", CPU),
        last_bias_unlinked=("rank 1's last bias is no more averaged", "B6.14", "mlp nccl_cadence", REPLICA),
        small_differences_stay=(
            "small differences are not sent",
            "a sparse wire",
            "mlp nccl_cadence averaging.wire=bfloat16",
            NCCL,
        ),
        biases_left_apart=("biases are never averaged", "B6.14", "mlp torch_local_sgd", LOCAL),
    ),
    **family_of(
        "evaluation",
        r,
        some_epochs_in_training_mode=(
            "every third evaluation is in training mode",
            "B11",
            "lenet solo train.epochs=5",
            REPLICA,
        ),
        evaluated_before_settled=(
            "a replica is evaluated, which is on its way to the average",
            "B17",
            "mlp nccl_cadence averaging.elastic=0.5",
            NCCL,
        ),
    ),
    **family_of(
        "record",
        r,
        loss_of_last_step=("a report has the loss of its last step", "B8.09", "mlp nccl_cadence", PENDING),
        clock_ahead_on_rank=("rank 1's clock is a third of a second ahead", "B8.05", "mlp nccl_cadence", RANK),
        busy_without_optimizer=("the optimizer is no part of a step's time", "B8.05", "mlp cpu_async", REPLICA),
        memory_of_the_end=("the peak of memory is that of the end", "a unit", "lenet nccl_cadence", LOOP),
        passes_counted_as_steps=(
            "a step of four passes counts as four",
            "A11",
            "lenet solo train.accumulate=4",
            PENDING,
        ),
        evaluation_half_booked=("half of an evaluation's time is booked", "B8.07", "mlp solo", LOOP),
    ),
}
"""Name -> what it is. Two to six of each family."""
OUTER = {"velocity_lost_when_resumed": ("averaging.outer=nesterov",)}
for name in ("restarts_at_epoch", "velocity_lost_when_resumed", "warmed_up_again_when_resumed"):
    more = "checkpoint.unit=averages", "checkpoint.every=5", *OUTER.get(name, ())
    SIXTH[name] = replace(SIXTH[name], settings=(*SIXTH[name].settings, *more))
