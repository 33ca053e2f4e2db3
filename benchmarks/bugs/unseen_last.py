"""Rows of `benchmarks.bugs.unseen`: the defects that were tried last, in models, modes and settings of their own."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.bugs import unseen_fourth as f
from benchmarks.bugs import unseen_fourth_steps as s
from benchmarks.bugs.bug import Bug
from benchmarks.bugs.unseen import LOOP, NCCL, OWNED, PACKED, PARTS, RATES, REPLICA, VISITS, family_of

GATHER, LANGUAGE = "ddp.data.gather", "bench.models.data.toy_language"
PASSES, FIGURES, AVERAGE = "ddp.replica.passes", "ddp.replica.figures", "ddp.gradients.average"
PARTS_OF_CHECKPOINT, TORCH = "ddp.checkpoint.parts", "ddp.backends.torch_backend"
UNEQUAL, HALF = "cluster.speeds=[1.0,0.5]", "train.precision=bf16"

FOURTH: dict[str, Bug] = {
    **family_of(
        "data",
        f,
        brighter_on_rank=("rank 1's images are a hundredth brighter", "A17", "lenet cpu_async", GATHER),
        text_wrapped_around=("a piece's first character follows its last", "B8.21", "char_rnn solo", LANGUAGE),
    ),
    **family_of(
        "order",
        f,
        order_anew_when_resumed=(
            "a run that is gone on with has its first orders again",
            "B7.05",
            "mlp cpu_async resumed",
            REPLICA,
        ),
        last_epoch_sorted=("the last epoch is in the data set's order", "A05", "mlp nccl_cadence", VISITS),
    ),
    **family_of(
        "forward",
        f,
        one_mask_an_epoch=("all steps of an epoch drop the same places", "A17", "gpt_nano nccl_cadence", REPLICA),
        single_precision_on_rank=("rank 1 forgets the half precision", "C04", f"mlp nccl_sync {HALF}", PASSES),
    ),
    **family_of(
        "gradient",
        f,
        last_pass_alone=("only the last micro-batch counts", "C28", "mlp zero3 train.accumulate=2", OWNED),
        reduced_in_half=("gradients travel in bfloat16, as the pass is", "B9.05", f"lenet nccl_sync {HALF}", PACKED),
    ),
    **family_of(
        "optimizer",
        s,
        moments_lost_when_resumed=(
            "rank 1's optimizer begins when the run is gone on with",
            "B7.11",
            "lenet nccl_cadence resumed",
            {PARTS_OF_CHECKPOINT: s.moments_lost_when_resumed, REPLICA: f.interrupted},
        ),
        norms_frozen_at_the_end=("rank 1 freezes norms in the last epoch", "C24", "lenet cpu_async", REPLICA),
    ),
    **family_of(
        "schedule",
        s,
        rate_every_tenth_step=("the rate is renewed every tenth step", "B5.15", "mlp nccl_cadence", RATES),
        horizon_of_whole_batches=(
            "the run's length is that of whole global batches",
            "D13",
            "mlp nccl_sync train.accumulate=4",
            REPLICA,
        ),
    ),
    **family_of(
        "average",
        s,
        alike_every_seventh_round=(
            "ranks weigh alike in every seventh round",
            "B6.28",
            f"mlp nccl_cadence {UNEQUAL}",
            NCCL,
        ),
        statistics_alike=(
            "running statistics of replicas weigh alike",
            "B19",
            f"lenet graph_cadence {UNEQUAL}",
            PACKED,
        ),
        slices_alike=("slices of the last batch weigh alike", "B9.01", "lenet torch_ddp world_size=3", TORCH),
    ),
    **family_of(
        "evaluation",
        s,
        evaluated_without_rest=("the last batch of a part is left out", "B03", "lenet nccl_sync", REPLICA),
        evaluated_as_trained=("evaluation is in training's half precision", "B9.07", f"lenet solo {HALF}", PASSES),
    ),
    **family_of(
        "record",
        s,
        waiting_between_steps=("waiting counts as a rank's work", "B8.07", f"mlp nccl_cadence {UNEQUAL}", LOOP),
        norm_of_own_gradients=(
            "the norm is that of a rank's own gradients",
            "B25",
            "mlp nccl_sync",
            {AVERAGE: s.norm_noted, FIGURES: s.norm_of_own_gradients},
        ),
        accuracy_by_nominal_batch=("a short batch counts as a whole one", "B07", "lenet solo", PARTS),
    ),
}
"""Name -> what it is. Two to three of each family."""
NAMED = {
    "data": "brighter_on_rank text_wrapped_around order_anew_when_resumed last_epoch_sorted",
    "audit": "one_mask_an_epoch single_precision_on_rank rate_every_tenth_step horizon_of_whole_batches slices_alike "
    "evaluated_without_rest evaluated_as_trained norm_of_own_gradients accuracy_by_nominal_batch",
    "average": "last_pass_alone reduced_in_half alike_every_seventh_round statistics_alike",
    "breakdown": "waiting_between_steps",
    "agreement": "moments_lost_when_resumed",
    "idle": "norms_frozen_at_the_end",
}
"""The check that has caught each of them; the last two, and the last two of `audit`, not at the first try."""
FOURTH = {name: replace(FOURTH[name], check=check) for check, names in NAMED.items() for name in names.split()}
