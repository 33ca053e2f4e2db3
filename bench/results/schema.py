"""`Metrics`: the result of one run, as written to `metrics.json`. The only definition of every field and its unit.

Numbers are finite: others become null and are named in `nonfinite`. Unknown fields are refused. Knows nothing of how a
result is computed (`bench.results.analysis`) or where it lies. `python -m bench.results.schema` writes the JSON Schema.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import Field, JsonValue, model_validator

from bench.base.paths import METRICS_SCHEMA
from bench.results.schema_goodput import Goodput, SlowRankRow
from bench.results.schema_speed import RankTime, Steady, StepCosts, Strict, SyncTotals, Throughput, Time, TimelineTotals
from ddp.backends import BACKENDS
from ddp.engine.modes import mode_of

__all__ = ["RankTime", "Steady", "Strict", "SyncTotals", "Throughput", "Time", "TimelineTotals"]

SCHEMA_VERSION = 8
"""1 had no `timeline`, 2 no `record`, 3 no `goodput`; 4 divided evaluation by the first ranks; 5 counted absent ranks as
present, 6 as idle; 7 called ranks that never came late. Within one version `analyze` maps equal records to equal results."""
READABLE = (1, 2, 3, 4, 5, 6, 7, 8)
SINCE = {"goodput": 4}
"""Field that is computed from records -> the first version that has it."""
MOST_RANKS = 4096
"""Larger numbers of ranks are a mistake."""
Status = Literal["ok", "diverged", "failed", "killed"]


class Epoch(Strict):
    """One epoch; `eval` is null if it was not (completely) evaluated."""

    epoch: int = Field(description="number of the epoch, from 0")
    samples: int = Field(
        description="samples trained by all ranks, since the start, when the epoch was evaluated (else: ended)"
    )
    train_loss: float | None = Field(description="mean training loss over the samples of the epoch, unit of the loss")
    eval: float | None = Field(description="mean of the evaluation metric over the test set, unit of the metric")
    eval_loss: float | None = Field(description="mean loss over the test set, unit of the loss")
    lr: float = Field(description="learning rate of the last step of the epoch")
    seconds: float = Field(
        description="training time until then, seconds since the last rank was ready, stopped for evaluation"
    )
    scalars: dict[str, float | None] = Field(
        default_factory=dict,
        description="what steps recorded (ddp.record_scalar), mean over the calls of all ranks, by name, in its own unit",
    )
    scalars_per_rank: list[dict[str, float | None]] = Field(
        default_factory=list, description="the same by rank, mean over its own calls; empty where it recorded nothing"
    )


class Final(Strict):
    """The final values of the run."""

    train_loss: float | None = Field(description="mean training loss of the last epoch, unit of the loss")
    eval: float | None = Field(description="evaluation metric of the last evaluated epoch, unit of the metric")
    best: float | None = Field(default=None, description="best evaluation metric of any epoch, unit of the metric")
    best_epoch: int | None = Field(default=None, description="the first epoch that had it, from 0")
    eval_metric: str = Field(description="name of the evaluation metric; an accuracy is a fraction in [0, 1]")
    higher_is_better: bool = Field(description="direction of the evaluation metric")


class TargetReached(Strict):
    """The value of the metric that a correct engine reaches, and when this run reached it."""

    value: float | None = Field(description="target, unit of the metric; null: none is set")
    reached: bool = Field(description="whether any evaluation reached it")
    samples: int | None = Field(description="samples trained by all ranks at the first evaluation that reached it")
    seconds: float | None = Field(description="training time at the first evaluation that reached it, seconds")


class PlanRow(Strict):
    """An order of the policy, in force from `seconds`."""

    seconds: float = Field(description="since launch, seconds")
    anchor: int = Field(description="steps of the slowest rank in a window")
    counts: list[int] = Field(description="steps in a window, by rank (0: the rank is gone)")
    phase: str = Field(description="of the controller: probe, warmup, stable or mature; empty: it has none")
    reason: str = Field(description="why it was given")


class WindowRow(Strict):
    """The work of the ranks between two averages."""

    seconds: float = Field(description="end of the window, since launch, seconds")
    round: int = Field(description="number of the round")
    steps: list[int] = Field(description="steps trained, by rank")
    ms_per_batch: list[float | None] = Field(description="busy time per step, by rank, milliseconds; null: none")


class GuardRow(Strict):
    """A verdict of the divergence guard other than `stable`."""

    seconds: float = Field(description="since launch, seconds")
    round: int = Field(description="number of the round that it judged last")
    guard: str = Field(description="name of the guard")
    verdict: Literal["suppress", "nudge"] = Field(description="windows must not grow; they shrink")
    divergence: float = Field(description="largest of the ranks' ||own - average|| / ||average||")
    value: float = Field(description="what the guard judges: the divergence, or its growth per step")
    limit: float = Field(description="what `value` has exceeded, unit of `value`")
    factor: float = Field(description="what the anchor is multiplied by; 1: it stays")


class Elche(Strict):
    """The schedule that the policy arrived at, and how."""

    anchor: int = Field(description="last anchor: steps of the slowest rank in a window")
    counts: list[int] = Field(description="last counts: steps in a window, by rank")
    plans: list[PlanRow] = Field(description="history of the orders that changed anchor, counts or phase")
    windows: list[WindowRow] = Field(description="history of the windows")
    guard: list[GuardRow] = Field(description="verdicts of the divergence guard other than `stable`")


class PeakMemory(Strict):
    """Peak memory; null for a rank that did not finish."""

    peak_rss_bytes: list[int | None] = Field(description="peak resident memory, by rank, bytes")
    peak_device_bytes: list[int | None] = Field(description="peak memory allocated on the device, by rank, bytes")
    parameter_bytes: list[int | None] | None = Field(
        default=None,
        description="parameters that a rank has between steps, shards included, by rank, bytes; null: not kept",
    )
    gradient_bytes: list[int | None] | None = Field(
        default=None, description="their gradients when the optimizer steps, by rank, bytes; null: not kept"
    )
    optimizer_bytes: list[int | None] | None = Field(
        default=None, description="the optimizer's state, by rank, bytes; null: not kept"
    )
    activation_bytes: list[int | None] | None = Field(
        default=None,
        description="what one forward pass keeps for its backward pass, by rank, bytes; null: not counted "
        "(profile.steps=0, or train.compile)",
    )


class FaultRow(Strict):
    """A fault: a lost rank, or a collective that failed without the loss of a rank."""

    seconds: float = Field(description="since launch, when it was noticed, seconds")
    rank: int | None = Field(description="number of the rank; null: a collective of several, or the coordinator")
    kind: Literal["failed", "lost", "silent", "dropped", "average_failed"] = Field(
        description="it raised; its process is gone; it was silent beyond the deadline; it was given up for another "
        "reason; a collective could not be completed"
    )
    text: str = Field(description="what happened, one line")
    action: str = Field(default="", description="what was done, one line; empty: nothing is recorded")
    back_s: float | None = Field(default=None, description="until the rank trained on, seconds; null: it never did")
    earlier: bool = Field(
        default=False, description="all ranks began again after it; `seconds` is of their earlier part"
    )


class LedgerRow(Strict):
    """Which samples of an epoch are in the model."""

    epoch: int = Field(description="number of the epoch, from 0")
    samples: int = Field(description="different samples in the model")
    repeated: int = Field(description="surplus repetitions of samples in it")
    by_rank: list[int] = Field(description="samples that each rank contributed")


class LedgerTotals(Strict):
    """The proof that every sample was trained exactly once: what each rank contributed to the shared model."""

    source: Literal["merged", "counted"] = Field(
        description="merged: from the positions of the samples, as recorded with every average; counted: one rank, "
        "which records how many it trained, not which: positions follow from its loop"
    )
    samples: int | None = Field(description="samples of an epoch; null: no rank became ready")
    epochs: list[LedgerRow] = Field(description="epochs with any samples in the model")
    exactly_once: bool = Field(description="every sample of every planned epoch is in the model exactly once")


class ResumedFrom(Strict):
    """What the run resumed from. `time_s`, `throughput`, `breakdown`, `sync`, `elche`, `memory` cover the time since."""

    source: str = Field(description="folder of the earlier run")
    checkpoint: int = Field(description="number of the checkpoint")
    epochs: int = Field(description="complete epochs in it")
    samples: int = Field(description="samples trained by all ranks in it")
    seconds: float = Field(description="training time that it holds, as in `epochs[].seconds`, seconds")
    times: int = Field(description="number of resumptions, including this one")
    ranks: list[int] = Field(default_factory=list, description="numbers of ranks before, one for each change")


class LauncherInfo(Strict):
    """Who started the ranks, and on which hosts."""

    name: str = Field(description="torchrun, slurm, mpi, ray, or as it called itself")
    job: str = Field(description="the job by the launcher; of an array, JOB_TASK")
    hosts: list[str] = Field(description="host of each rank; its place, where the launcher does not name it")
    clock_error_s: list[float] = Field(description="most that the clock of each rank's host was off, seconds")


class RecordSeal(Strict):
    """Digests that bind this result to the records from which it was computed."""

    lines: int = Field(description="lines of events.jsonl")
    sha256: str = Field(description="of events.jsonl")
    result: str = Field(description="sha256 of all else in this file, as canonical JSON")


class Metrics(Strict):
    """The result of one run."""

    schema_version: Literal[1, 2, 3, 4, 5, 6, 7, 8] = Field(description="version of this schema")
    run_id: str = Field(description="name of the run folder; starts with w<world_size>-s<seed>-")
    status: Status = Field(description="ok; diverged (loss not finite); failed (error); killed (interrupted)")
    error: str | None = Field(description="one line; null if none")
    source: Literal["predicted", "virtual"] | None = Field(
        default=None, description="predicted: simulated, nothing learned; virtual: trained in virtual time; null: run"
    )
    model: str = Field(description="name of the model")
    data: str = Field(description="name of the data set, with its settings where it has any")
    recipe: str = Field(description="how long and on what it is trained")
    mode: str = Field(description="preset of engine, policy and backend")
    engine: str = Field(description="what ran the training loop")
    policy: str | None = Field(description="when replicas are synchronized; null: the engine has none")
    backend: str | None = Field(description="how replicas are synchronized; null: the engine has none")
    transport: str | None = Field(description="nccl, gloo, memory or none (one rank); null: no rank became ready")
    loader: list[str] = Field(
        default_factory=list, description="loader of each rank: resident or streaming; empty: not recorded"
    )
    devices: list[str] = Field(description="device of each rank that became ready")
    world_size: int = Field(ge=1, le=MOST_RANKS, description="number of ranks")
    emulated_speeds: list[float] = Field(description="emulated relative speed, by rank; empty: none is emulated")
    scripted_faults: list[str] = Field(default_factory=list, description="made on purpose, RANK@STEP:KIND; empty: none")
    timing: bool = Field(
        default=True,
        description="whether speeds were measured; false (timing=off): there are none, as cells ran together",
    )
    seed: int = Field(description="of every random number of the run")
    epochs_planned: int = Field(description="epochs that the run was to train")
    batch_size: int = Field(description="samples of one step of one rank")
    lr: float = Field(description="base learning rate, before `lr_scale`")
    lr_scale: float = Field(description="factor on every learning rate")
    depth: int | None = Field(default=None, description="layers with weights; null: the model's own number")
    parameters: int | None = Field(description="number of parameters; null: no rank became ready")
    frozen: int = Field(default=0, description="of the parameters, those that are not trained")
    config_hash: str = Field(description="hash of the resolved configuration without the seed")
    git: dict[str, JsonValue] = Field(description="state of the source")
    env: dict[str, JsonValue] = Field(description="machine and versions")
    steps: int = Field(description="batches trained by all ranks")
    samples: int = Field(description="samples trained by all ranks, those trained again after a loss counted again")
    epochs: list[Epoch] = Field(description="epochs with any training")
    final: Final
    target: TargetReached
    time_s: Time
    throughput: Throughput
    breakdown: list[RankTime] = Field(description="by rank; empty if not all became ready, unless the run is `ok`")
    sync: SyncTotals
    goodput: Goodput | None = Field(
        default=None, description="null: speeds were not measured, or the result is from before it was kept"
    )
    timeline: TimelineTotals | None = Field(default=None, description="null: the result is from before it was kept")
    elche: Elche | None = Field(description="null: the run had no schedule")
    memory: PeakMemory
    work: StepCosts | None = Field(default=None, description="null: the result is from before it was kept")
    params_sha256: str | None = Field(description="of the final parameters; null: no rank finished, or they differ")
    faults: list[FaultRow] = Field(description="in the order in which they were noticed")
    slow_ranks: list[SlowRankRow] | None = Field(
        default=None, description="in the order in which they were named; null: ranks recorded no parts of their steps"
    )
    ledger: LedgerTotals | None = Field(default=None, description="null: the result is from before it was kept")
    late: list[int] = Field(default=[], description="ranks in the last part of the run that joined after a start")
    absent: list[int] = Field(default=[], description="ranks that never joined, in the last part of the run")
    resumed: ResumedFrom | None = Field(default=None, description="null: the run was not resumed")
    restarts: int = Field(default=0, ge=0, description="how often the launcher had restarted the processes before")
    launcher: LauncherInfo | None = Field(default=None, description="null: no launcher, or the result is from before")
    warnings: list[str] = Field(description="what a reader must know")
    nonfinite: list[str] = Field(description="fields that are null because the number was not finite")
    record: RecordSeal | None = Field(default=None, description="null: the result is from before records were sealed")

    @property
    def begun_without(self) -> list[int]:
        """Return the ranks that were absent at the start: they joined later, or never."""
        return sorted([*self.late, *self.absent])

    @model_validator(mode="before")
    @classmethod
    def _in_present_words(cls, fields: Any) -> Any:
        """Convert results of earlier versions, which named some backends as engines."""
        engine = fields.get("engine") if isinstance(fields, dict) else None
        if not isinstance(engine, str) or engine not in BACKENDS:
            return fields
        mode = mode_of(engine, None, None)
        return fields | {"engine": mode.engine, "policy": mode.policy, "backend": mode.backend}


def json_schema() -> str:
    """Return the JSON Schema of `metrics.json`, as committed in `METRICS_SCHEMA`."""
    return json.dumps(Metrics.model_json_schema(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    METRICS_SCHEMA.write_text(json_schema(), encoding="utf-8")
