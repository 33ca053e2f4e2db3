"""The bugs: what each breaks, the cells of `conf/experiment/ci.yaml` that are trained with it, and what must catch it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.bugs import patches as p

Patch = Callable[[Any], None]


@dataclass(frozen=True)
class Bug:
    """One defect."""

    breaks: str
    """In words."""
    model: str
    mode: str
    check: str
    """The check that must fail."""
    patches: Mapping[str, Patch]
    """Module -> what breaks it."""
    times: int = 1
    """How often the cell is trained with the same seed."""


def _bug(breaks: str, cell: str, check: str, module: str, patch: Patch, times: int = 1) -> Bug:
    model, mode = cell.split()
    return Bug(breaks, model, mode, check, {module: patch}, times)


NCCL, CPU = "ddp.backends.allreduce", "ddp.backends.snapshot"
REPLICA, INSTEP = "ddp.replica.replica", "ddp.gradients.average"
BUFFERS, GRADIENTS = "ddp.replica.buffers", "ddp.gradients.step_gradients"
VISITS, GATHER = "ddp.data.epoch_order", "ddp.data.gather"
SOLO, SYNC, CADENCE, ASYNC = "mlp solo", "mlp nccl_sync", "mlp nccl_cadence", "mlp cpu_async"

BUGS: dict[str, Bug] = {
    "not_averaged": _bug("replicas are not averaged", CADENCE, "average", NCCL, p.not_averaged),
    "wrong_divisor": _bug(
        "averages are divided as if there were a rank more", CADENCE, "average", NCCL, p.wrong_divisor
    ),
    "unweighted": _bug(
        "averages do not weigh ranks by samples", CADENCE, "average", "ddp.core.averaging", p.unweighted
    ),
    "stale_snapshot": _bug("snapshots are a round old", ASYNC, "average", CPU, p.stale_snapshot),
    "torn_snapshot": _bug("half of a snapshot is a round old", ASYNC, "average", CPU, p.torn_snapshot),
    "coarse_snapshot": _bug("snapshots are in half precision", ASYNC, "average", CPU, p.coarse_snapshot),
    "flight_lost": _bug(
        "what is trained while an average is made is thrown away", ASYNC, "average", CPU, p.flight_lost
    ),
    "buffers_left_out": _bug(
        "running statistics are not averaged", "lenet nccl_cadence", "average", NCCL, p.buffers_left_out
    ),
    "buffers_left_out_of_steps": _bug(
        "running statistics are not averaged inside steps",
        "lenet nccl_sync",
        "average",
        BUFFERS,
        p.buffers_left_out_of_steps,
    ),
    "gradients_summed": _bug("gradients are added up, not averaged", SYNC, "average", GRADIENTS, p.gradients_summed),
    "gradients_not_averaged": _bug(
        "ranks step with their own gradients", SYNC, "agreement", INSTEP, p.gradients_not_averaged
    ),
    "narrow_wire": _bug("averages travel in single precision", CADENCE, "volume", NCCL, p.narrow_wire),
    "order_per_rank": _bug("every rank shuffles for itself: shards overlap", SYNC, "visits", VISITS, p.order_per_rank),
    "same_shard": _bug("every rank trains the same slice of a batch", SYNC, "visits", "ddp.core.worker", p.same_shard),
    "sample_lost": _bug("a sample is lost in every epoch, another read twice", SOLO, "visits", GATHER, p.sample_lost),
    "epoch_short": _bug(
        "the coordinator's epochs end a sample early", CADENCE, "ledger", "ddp.core.coordinator", p.epoch_short
    ),
    "last_batch_dropped": _bug(
        "the last, partial batch is left out", SOLO, "ledger", "ddp.core.spans", p.last_batch_dropped
    ),
    "order_by_chance": _bug(
        "the order of samples is not the seed's", SOLO, "determinism", VISITS, p.order_by_chance, times=2
    ),
    "rate_times_ranks": _bug(
        "the learning rate is off by the number of ranks", SYNC, "rate", REPLICA, p.rate_times_ranks
    ),
    "schedule_per_rank": _bug(
        "the schedule counts the rank's own samples", CADENCE, "rate", REPLICA, p.schedule_per_rank
    ),
    "schedule_stuck": _bug("the schedule never moves", SOLO, "rate", REPLICA, p.schedule_stuck),
    "evaluated_on_training_data": _bug(
        "evaluation is on the training data", SOLO, "evaluation", REPLICA, p.evaluated_on_training_data
    ),
    "evaluated_on_leaked_data": _bug(
        "evaluation is on as many training samples", ASYNC, "evaluation", REPLICA, p.evaluated_on_leaked_data
    ),
    "part_evaluated": _bug(
        "every rank evaluates the same part of the test set", CADENCE, "evaluation", REPLICA, p.part_evaluated
    ),
    "own_model_evaluated": _bug(
        "ranks evaluate their own replica, not the average", ASYNC, "evaluation", CPU, p.own_model_evaluated
    ),
    "idle_rank": _bug("a rank is silently idle: its optimizer does nothing", CADENCE, "idle", REPLICA, p.idle_rank),
    "idle_in_steps": _bug("a rank's gradients are zero", SYNC, "idle", INSTEP, p.idle_in_steps),
    "gradients_kept": _bug("gradients are never cleared", SOLO, "curve", REPLICA, p.gradients_kept),
    "begin_apart": _bug("ranks begin with different parameters", CADENCE, "status", REPLICA, p.begin_apart),
}
"""Name -> bug."""
