"""Rows of `benchmarks.bugs.unseen`: a seventh lot, written blind: by somebody who had read the engine, its documents and the
histories of other projects, and none of the checks."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.bugs import unseen_seventh as f
from benchmarks.bugs import unseen_seventh_results as r
from benchmarks.bugs import unseen_seventh_steps as s
from benchmarks.bugs.bug import Bug
from benchmarks.bugs.unseen import family_of

OWN = ("augmented", "skipping", "sampled", "noisy")
AUGMENTED, SKIPPING, SAMPLED, NOISY = (f"benchmarks.bugs.own_{name}" for name in OWN)
REPLICA, GATHER, EPOCH_ORDER = "ddp.replica.replica", "ddp.data.gather", "ddp.data.epoch_order"
SNAPSHOT, ALLREDUCE, LOOP = "ddp.backends.snapshot", "ddp.backends.allreduce", "ddp.engine.loop"
ZERO1, ZERO3, FIGURES = "ddp.sharding.zero1", "ddp.sharding.zero3", "ddp.replica.figures"
TWICE = "train.accumulate=2"

SEVENTH: dict[str, Bug] = {
    **family_of(
        "data",
        f,
        short_batches_filled_up=(
            "short batches are filled up with earlier samples",
            "B01",
            "conv_ae nccl_sync world_size=4 data.samples=1000",
            REPLICA,
        ),
        noise_of_first_sample=(
            "all samples of a batch draw the same noise",
            "A17",
            f"{NOISY} cpu_cadence",
            "ddp.data.dataset",
        ),
    ),
    **family_of(
        "order",
        f,
        sampler_of_first_epoch=("a sampler is asked for epoch 0 alone", "A01", f"{SAMPLED} nccl_sync", EPOCH_ORDER),
        passes_in_one_order=(
            "passes of a long epoch are in one order",
            "A01",
            "mlp nccl_cadence world_size=3 train.steps=1600",
            EPOCH_ORDER,
        ),
    ),
    **family_of(
        "forward",
        f,
        one_mask_for_all_passes=("passes of a step drop the same units", "A17", f"gpt_nano nccl_sync {TWICE}", REPLICA),
        statistics_of_first_pass=("norms learn from a step's first pass", "B21", f"lenet nccl_sync {TWICE}", REPLICA),
    ),
    **family_of(
        "gradient",
        f,
        unused_get_zeros=(
            "unused parameters have gradients of zeros",
            "C10",
            f"{SKIPPING} nccl_sync",
            "ddp.gradients.step_gradients",
        ),
        large_ones_unweighted=(
            "gradients with a bucket of their own are not weighed",
            "B6.18",
            "resnet_graph zero2",
            "ddp.gradients.owned",
        ),
        replicas_weigh_alike=(
            "unequal replicas weigh alike",
            "B9.01",
            "mlp graph_cadence cluster.speeds=[1.0,0.4]",
            "ddp.graph.accumulate",
        ),
    ),
    **family_of(
        "optimizer",
        s,
        counters_lost_when_resumed=(
            "an optimizer's count of steps is lost when a run goes on",
            "D07",
            "mlp nccl_sync resumed",
            {"ddp.checkpoint.parts": s.counters_lost_when_resumed, REPLICA: s.ended},
        ),
        groups_without_settings=(
            "groups lose their decay",
            "D03",
            f"{AUGMENTED} torch_zero1",
            "ddp.backends.torch_zero1",
        ),
        second_moments_forgotten=(
            "second moments are not averaged",
            "D19",
            "mlp nccl_cadence averaging.optimizer_state=true",
            "ddp.replica.optimizer_state",
        ),
        moments_not_taken_over=(
            "a rank that returns has no moments",
            "D11",
            "mlp nccl_cadence cluster.restart=1 cluster.faults=['1@60:crash']",
            "ddp.engine.handover",
        ),
    ),
    **family_of(
        "schedule",
        s,
        scheduler_a_step_ahead=(
            "PyTorch's schedulers are a step ahead",
            "B5.09",
            f"{SAMPLED} nccl_cadence",
            "ddp.replica.lr_schedule",
        ),
    ),
    **family_of(
        "average",
        s,
        statistics_taken_whole=("statistics lose what moved them meanwhile", "B6.04", "lenet cpu_async", SNAPSHOT),
        warm_up_counted_in_periods=(
            "nothing is averaged for 300 steps",
            "D19",
            "mlp torch_local_sgd world_size=3",
            "ddp.backends.torch_local_sgd",
        ),
        survivors_swap_weights=(
            "survivors have each other's weights",
            "B6.28",
            "mlp cpu_cadence world_size=3 cluster.speeds=[0.3,1.0,0.5] cluster.faults=['0@60:crash']",
            SNAPSHOT,
        ),
        elastic_the_other_way=(
            "replicas go the other part of the way",
            "B6.04",
            "mlp nccl_cadence world_size=3 averaging.elastic=0.3",
            ALLREDUCE,
        ),
        outer_momentum_dampened=(
            "the outer velocity is dampened",
            "D17",
            "lenet cpu_cadence averaging.outer=momentum",
            "ddp.replica.outer_optimizer",
        ),
        statistics_of_first_replica=(
            "replicas take the first one's statistics",
            "B17",
            "lenet graph_sync",
            "ddp.gradients.exchange",
        ),
        tail_not_fetched=("the last elements are not fetched", "B9.09", "mlp zero1", ZERO1),
        own_replica_saved=(
            "a checkpoint has rank 0's replica",
            "B7.13",
            "mlp cpu_async resumed",
            {LOOP: s.own_replica_saved, REPLICA: s.ended},
        ),
    ),
    **family_of(
        "evaluation",
        r,
        short_means_count_whole=("means of short batches count as whole", "B07", f"{NOISY} cpu_async", REPLICA),
        whole_model_kept=("the first whole model is evaluated again", "B7.13", "conv_ae zero3", ZERO3),
        evaluated_before_update=(
            "replicas are evaluated before their last step",
            "B17",
            "mlp graph_cadence",
            "ddp.graph.engine",
        ),
    ),
    **family_of(
        "record",
        r,
        data_booked_as_forward=(
            "data is booked as forward pass",
            "B8.07",
            "conv_ae cpu_cadence loader.kind=streaming",
            "ddp.process.meter",
        ),
        tokens_of_batch=("a batch's tokens are a sample's", "B8.03", "gpt_nano nccl_sync", FIGURES),
        work_over_all_passes=(
            "work is divided by all passes' samples",
            "B8.03",
            f"lenet solo {TWICE} profile.steps=5",
            FIGURES,
        ),
        scalars_of_last_step=("scalars are the last step's", "B8.09", "lenet nccl_cadence", "ddp.replica.scalars"),
        training_loss_divided=("a loss is divided twice", "B8.11", f"vit zero1 {TWICE}", REPLICA),
    ),
}
"""Name -> what it is. One to six of each family."""
for name, every in (("counters_lost_when_resumed", 200), ("own_replica_saved", 5)):
    more = "checkpoint.unit=averages", f"checkpoint.every={every}"
    SEVENTH[name] = replace(SEVENTH[name], settings=(*SEVENTH[name].settings, *more))
