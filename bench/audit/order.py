"""What an audit is of: a run's configuration, its records, and where lies what ranks kept. Plain data, without torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from pathlib import Path

from bench.audit.places import Turn, misplaced, out_of_turn, places, turns
from bench.config.plan import LaunchPlan
from bench.results.schema import SCHEMA_VERSION, Metrics
from ddp.backends import is_torch_native
from ddp.core.commands import Evaluate
from ddp.core.event_parts import StepWork
from ddp.core.events import Evaluated, Finished, Progress, Ready, Resumed, Saved
from ddp.core.step_settings import NAMES, PLAIN, StepSettings
from ddp.engine.modes import engine_of
from ddp.process.codec import Record
from ddp.replica.task import Task, epoch_samples


@dataclass(frozen=True)
class StepReport:
    """What a rank reported of its own batches number `first` to `last` - 1, counted over the run."""

    rank: int
    first: int
    last: int
    epoch: int
    samples: int
    loss_sum: float | None
    lr: float
    """Of the last one."""
    scalars: tuple[tuple[str, float | None, int], ...] = ()
    """What the batches recorded: (name, sum, number of calls, or of samples)."""
    seen: float | None = None
    """Samples that all ranks had seen before the last one, by the rank's orders; None: it is not known."""
    resumes: int = 0
    """How often the run had gone on from a checkpoint by then."""


@dataclass(frozen=True)
class AuditOrder:
    """One run to be audited."""

    kept: Path
    """Folder of the files that ranks kept."""
    run_id: str
    model: str
    task: Callable[[], Task]
    data: str
    augment: bool
    seed: int
    epochs: int
    world_size: int
    lr_scale: float
    max_grad_norm: float | None
    own_buffers: bool
    """Whether every rank keeps its own buffers in a step of all ranks."""
    planned: bool
    """Whether the run went as planned: no rank was lost."""
    recorded: tuple[tuple[str, int, str], ...]
    """Files that ranks recorded: name, bytes, sha256."""
    initial: str
    """Digest of the model that they began with."""
    reports: tuple[StepReport, ...]
    """What ranks reported of what they trained."""
    device: str
    eval: float | None
    eval_loss: float | None
    params_sha256: str | None
    evaluations: tuple[tuple[int, float | None, float | None], ...] = ()
    """(epoch, loss, metric) on the test set."""
    shown: tuple[tuple[int, int, float | None, float | None], ...] = ()
    """(epoch, rank, sum of losses, of metrics) of what each rank evaluated."""
    step: StepSettings = PLAIN
    batch_size: int = 0
    """Samples of one step of one rank."""
    length: int | None = None
    """Positions of an epoch; None: as many as the data set has samples."""
    norms: tuple[tuple[tuple[int, float | None], ...], ...] = ()
    """By rank, (step, norm of the gradients) as it was recorded; empty: not at all."""
    in_shards: bool = False
    """Whether they are of what each rank has of the gradients."""
    resumed: bool = False
    """Whether it went on from a checkpoint, so that nothing is kept of its beginning."""
    waiting: bool = True
    """Whether ranks wait for each other, so that a checkpoint has all that they reported before it."""
    works: tuple[StepWork, ...] = ()
    """What each rank measured of its steps; empty: not all of them did."""
    parameters: int | None = None
    """That ranks counted."""
    whole: bool = False
    """Whether each rank has the whole model."""
    turns: Mapping[int, Sequence[Turn]] = field(default_factory=dict)
    """What each rank was granted for itself, in turn."""
    misplaced: str = ""
    """Who was told of fewer samples than were in the model, or of more than there can have been."""
    schedule: str = ""
    """Name of the schedule; empty: of nobody's."""
    recipe: str = ""
    version: int = SCHEMA_VERSION
    """Of the result."""
    measure: tuple[str | None, bool, float | None] | None = None
    """Metric, whether higher is better, and target, as the result has them; None: not known."""
    depth: int | None = None
    """Layers of a model where they were chosen."""
    checkpoints: Path | None = None
    """Folder of checkpoints; None: there is none."""
    saved: Mapping[tuple[int, int | None], str] = field(default_factory=dict)
    """By checkpoint and rank the digest of its optimizer's tensors; by checkpoint and None that of the model."""
    lr: float | None = None
    """Learning rate that is set; None: not known."""
    samples: int | None = None
    """Training samples that are set; None: all that there are."""
    eval_parts: int = 0
    """Parts in which the last evaluation was made, one after the other; 0: one for each rank."""
    untouched: bool = True
    """Whether averages leave optimizers alone."""
    resets: bool = False
    """Whether optimizers begin anew at averages."""
    moves: bool = False
    """Whether something may change a rank's state between two steps: a bit that a script flips, shards that are cut anew."""
    one_process: bool = False
    """Whether ranks are threads of one process, where each cuts its own part of a step into micro-batches."""

    @property
    def numbered(self) -> bool:
        """Whether what ranks report is numbered as their steps are."""
        return self.planned and (self.waiting or not self.resumed)

    @property
    def coarse(self) -> bool:
        """Whether it was trained where multiplications are coarser than on a CPU."""
        return not self.device.startswith("cpu")


SHARDED = ("zero1", "zero2", "zero3", "torch_fsdp")
"""Backends whose ranks have a part of the gradients each when the optimizer steps."""
MEASURED = (None, "nccl", "cpu", "torch_ddp", "torch_zero1", "torch_local_sgd", *SHARDED)
"""Those of whose steps the norm is known by the batches alone."""


def norms_of(records: Sequence[Record]) -> tuple[tuple[tuple[int, float | None], ...], ...]:
    """Return what each rank recorded of the norms of its gradients; empty if one recorded nothing."""
    ends = sorted((event for event in records if isinstance(event, Finished)), key=lambda event: event.rank)
    known = tuple(event.work.norms for event in ends if event.work is not None)
    return known if len(known) == len(ends) else ()


def works_of(records: Sequence[Record]) -> tuple[StepWork, ...]:
    """Return what each rank measured of its steps; empty if one did not."""
    ends = sorted((event for event in records if isinstance(event, Finished)), key=lambda event: event.rank)
    works = tuple(event.work for event in ends if event.work is not None)
    return works if len(works) == len(ends) else ()


def saved_of(records: Sequence[Record]) -> dict[tuple[int, int | None], str]:
    """Return the digests of what was saved last under each number, by checkpoint and rank; of models by None."""
    digests: dict[tuple[int, int | None], str] = {}
    for event in records:
        if isinstance(event, Saved):
            model, optimizer = event.digests
            digests |= {(event.index, event.rank): optimizer}
            digests |= {(event.index, None): model} if model else {}
    return {place: digest for place, digest in digests.items() if digest}


def reports_of(records: Sequence[Record], batch_size: int = 0) -> Iterator[StepReport]:
    """Iterate over the reports of what was trained, in steps of `batch_size` samples; 0: places are not looked for."""
    done: dict[int, int] = defaultdict(int)
    saved: dict[int, set[int]] = defaultdict(set)
    seen = places(records, batch_size) if batch_size else repeat(None)
    resumes = 0
    for event in records:
        if isinstance(event, Saved):
            saved[event.index].add(event.rank)
        elif isinstance(event, Resumed):  # who has saved nothing goes on with the counters of the first that has
            own = sorted(saved[event.index])
            resumes += 1 + bool(event.ranks)  # of another number of ranks nothing is held against what was before
            done = defaultdict(partial(int, done[own[0]] if own else 0), {rank: done[rank] for rank in own})
        elif isinstance(event, Progress):
            first, done[event.rank] = done[event.rank], done[event.rank] + event.steps
            figures = event.epoch, event.samples, event.loss_sum, event.lr, event.scalars, next(seen), resumes
            yield StepReport(event.rank, first, done[event.rank], *figures)


def order_of(
    plan: LaunchPlan, metrics: Metrics, records: Sequence[Record], kept: Path, task: Callable[[], Task] | None = None
) -> AuditOrder:
    """Return the order for a finished run. `task`: as another process gets it; None: the job's own."""
    spec, job = plan.spec, plan.job
    ready = [record for record in records if isinstance(record, Ready)]
    files = [file for record in records if isinstance(record, Finished) for file in record.kept]
    last = metrics.epochs[-1] if metrics.epochs else None
    # What was asked for, not what ranks were given: a setting that never arrived is to show.
    train = spec.config["train"]
    own = spec.config.get("script") or "model" in (spec.config.get("code") or {})
    return AuditOrder(
        kept=kept,
        run_id=spec.run_id,
        model="" if own else spec.model,
        task=task or job.task,
        data=spec.data,
        augment=spec.config["training"]["augment"],
        seed=spec.seed,
        epochs=spec.epochs,
        world_size=spec.world_size,
        lr_scale=spec.lr_scale,
        max_grad_norm=train.get("max_grad_norm"),
        own_buffers=is_torch_native(spec.backend),
        planned=not metrics.faults,
        resumed=metrics.resumed is not None,
        waiting=spec.backend != "cpu",
        recorded=tuple(files),
        initial=ready[0].digest if ready else "",
        reports=tuple(reports_of(records, job.batch_size)),
        device=ready[0].device if ready else "cpu",
        eval=metrics.final.eval,
        eval_loss=last.eval_loss if last is not None else None,
        params_sha256=metrics.params_sha256,
        evaluations=tuple((row.epoch, row.eval_loss, row.eval) for row in metrics.epochs),
        shown=tuple((e.epoch, e.rank, e.loss_sum, e.metric_sum) for e in records if isinstance(e, Evaluated)),
        step=StepSettings(**{name: train[name] for name in NAMES if name in train}),
        batch_size=job.batch_size,
        length=epoch_samples(job),
        norms=norms_of(records) if spec.backend in MEASURED else (),
        in_shards=spec.backend in SHARDED,
        works=works_of(records),
        parameters=ready[0].parameters if ready else None,
        whole=spec.backend in (None, "nccl", "cpu"),
        turns=turns(records),
        misplaced=misplaced(records) or ("" if metrics.faults or metrics.late else out_of_turn(records)),
        schedule="" if own else str(spec.config["training"].get("schedule", "")),
        version=metrics.schema_version,
        recipe=str(spec.config.get("recipe", "")),
        measure=(metrics.final.eval_metric, metrics.final.higher_is_better, metrics.target.value),
        depth=spec.config.get("depth"),
        checkpoints=job.checkpoint_folder,
        saved=saved_of(records),
        lr=train.get("lr"),
        samples=spec.config["data"].get("samples"),
        eval_parts=next((record.parts for record in reversed(records) if isinstance(record, Evaluate)), 0),
        untouched=not (job.averaging.optimizer_state or job.averaging.resets),
        resets=job.averaging.resets,
        moves=bool(metrics.late) or any(":flip" in fault for fault in metrics.scripted_faults),
        one_process=engine_of(spec.engine).one_process,
    )
