"""The input of an audit: a run's configuration, its records, and the folder of what ranks kept. Plain data, without
torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from pathlib import Path

from bench.audit.documented.schedule_places import Place, Turn, breaks, misplaced, out_of_turn, places, turns
from bench.config.plan import LaunchPlan
from bench.results.schema import SCHEMA_VERSION, Metrics
from ddp.backends import is_torch_native
from ddp.core.messages.commands import Evaluate
from ddp.core.messages.event_parts import StepWork
from ddp.core.messages.events import Evaluated, Finished, Progress, Ready, Resumed, Saved
from ddp.core.policies import meets_every_step
from ddp.core.settings.steps import NAMES, PLAIN, StepSettings
from ddp.engine.modes import engine_of
from ddp.process.codec import Record
from ddp.replica.task import Task


@dataclass(frozen=True)
class StepReport:
    """A rank's report of its own batches number `first` to `last` - 1, counted over the whole run."""

    rank: int
    first: int
    last: int
    epoch: int
    samples: int
    loss_sum: float | None
    lr: float
    """Learning rate of the last batch."""
    scalars: tuple[tuple[str, float | None, int], ...] = ()
    """(Name, sum, number of calls or of samples) of what the batches recorded."""
    seen: Place | None = None
    """Samples that all ranks had seen before the last batch, by the rank's orders; None: not known."""
    resumes: int = 0
    """Number of resumptions before this report."""


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
    unbroken: bool
    """Whether no rank was lost since the last resumption."""
    recorded: tuple[tuple[str, int, str], ...]
    """Files that ranks recorded: name, bytes, sha256."""
    initial: str
    """Digest of the initial model."""
    reports: tuple[StepReport, ...]
    """The ranks' reports of training."""
    device: str
    eval: float | None
    eval_loss: float | None
    params_sha256: str | None
    evaluations: tuple[tuple[int, float | None, float | None], ...] = ()
    """(epoch, loss, metric) on the test set."""
    shown: tuple[tuple[int, int, float | None, float | None], ...] = ()
    """(epoch, rank, sum of losses, sum of metrics) of each rank's evaluations."""
    step: StepSettings = PLAIN
    batch_size: int = 0
    """Samples of one step of one rank."""
    length: int | None = None
    """Positions in an epoch; None: as many as the data set has samples."""
    norms: tuple[tuple[tuple[int, float | None], ...], ...] = ()
    """By rank, recorded (step, gradient norm); empty: not recorded."""
    in_shards: bool = False
    """Whether `norms` are those of each rank's shard of the gradients."""
    resumed: bool = False
    """Whether the run was resumed, so that nothing is kept of its beginning."""
    waiting: bool = True
    """Whether ranks wait for each other, so that a checkpoint contains all that they reported before it."""
    works: tuple[StepWork, ...] = ()
    """Each rank's measurements of its steps; empty: a rank has none."""
    parameters: int | None = None
    """Number of parameters by the ranks."""
    whole: bool = False
    """Whether each rank has the whole model."""
    turns: Mapping[int, Sequence[Turn]] = field(default_factory=dict)
    """Rank -> its grants of work, in order, unless ranks share steps."""
    misplaced: str = ""
    """A message if a rank was told of fewer samples than were in the model, or of more than possible."""
    schedule: str = ""
    """Name of the schedule; empty: a user's own."""
    recipe: str = ""
    version: int = SCHEMA_VERSION
    """Schema version of the result."""
    measure: tuple[str | None, bool, float | None] | None = None
    """(Metric, whether higher is better, target) of the result; None: not known."""
    depth: int | None = None
    """Layers of the model, if configured."""
    checkpoints: Path | None = None
    """Folder of checkpoints; None: there is none."""
    saved: Mapping[tuple[int, int | None], str] = field(default_factory=dict)
    """(Checkpoint, rank) -> digest of the rank's optimizer state; (checkpoint, None) -> digest of the model."""
    lr: float | None = None
    """The configured learning rate; None: not known."""
    samples: int | None = None
    """The configured number of training samples; None: all."""
    eval_parts: int = 0
    """Number of parts of the last evaluation; 0: one for each rank."""
    untouched: bool = True
    """Whether averages leave the optimizers alone."""
    resets: bool = False
    """Whether averages reset the optimizers."""
    moves: bool = False
    """Whether something may change a rank's state between two steps: a scripted bit flip, or resharding."""
    one_process: bool = False
    """Whether ranks are threads of one process."""
    own_batches: bool = False
    """Whether a step of several ranks consists of batches of theirs: there is one step in a window."""
    breaks: tuple[float, ...] = ()
    """Samples seen where the run was resumed or its ranks changed, ascending."""

    @property
    def numbered(self) -> bool:
        """Whether reports have the numbers of the ranks' steps."""
        return self.planned and (self.waiting or not self.resumed)

    @property
    def coarse(self) -> bool:
        """Whether it was trained on a device with coarser multiplication than a CPU."""
        return not self.device.startswith("cpu")


SHARDED = ("zero1", "zero2", "zero3", "torch_fsdp")
"""Backends whose ranks each hold a shard of the gradients when the optimizer steps."""
MEASURED = (None, "nccl", "cpu", "torch_ddp", "torch_zero1", "torch_local_sgd", *SHARDED)
"""Backends for which the batches alone determine the gradient norm of a step."""


def norms_of(records: Sequence[Record]) -> tuple[tuple[tuple[int, float | None], ...], ...]:
    """Return the gradient norms that each rank recorded; () if a rank recorded none."""
    return tuple(work.norms for work in works_of(records))


def works_of(records: Sequence[Record]) -> tuple[StepWork, ...]:
    """Return each rank's measurements of its steps; () if a rank has none."""
    ends = sorted((event for event in records if isinstance(event, Finished)), key=lambda event: event.rank)
    works = tuple(event.work for event in ends if event.work is not None)
    return works if len(works) == len(ends) else ()


def saved_of(records: Sequence[Record]) -> dict[tuple[int, int | None], str]:
    """Return (checkpoint, rank) -> digest of what was saved last under that number; rank None stands for the model."""
    digests: dict[tuple[int, int | None], str] = {}
    for event in records:
        if isinstance(event, Saved):
            model, optimizer = event.digests
            digests |= {(event.index, event.rank): optimizer}
            digests |= {(event.index, None): model} if model else {}
    return {place: digest for place, digest in digests.items() if digest}


def reports_of(records: Sequence[Record], batch_size: int = 0) -> Iterator[StepReport]:
    """Iterate over the reports of training. `batch_size`: samples of a step, to compute `seen`; 0: leave it out."""
    done: dict[int, int] = defaultdict(int)
    saved: dict[int, set[int]] = defaultdict(set)
    seen = places(records, batch_size) if batch_size else repeat(None)
    resumes = 0
    for event in records:
        if isinstance(event, Saved):
            saved[event.index].add(event.rank)
        elif isinstance(event, Resumed):  # ranks that saved nothing take the counters of the first that did
            own = sorted(saved[event.index])
            resumes += 1 + bool(event.ranks)  # other ranks: reports from before are not compared
            done = defaultdict(partial(int, done[own[0]] if own else 0), {rank: done[rank] for rank in own})
        elif isinstance(event, Progress):
            first, done[event.rank] = done[event.rank], done[event.rank] + event.steps
            figures = event.epoch, event.samples, event.loss_sum, event.lr, event.scalars, next(seen), resumes
            yield StepReport(event.rank, first, done[event.rank], *figures)


def order_of(
    plan: LaunchPlan, metrics: Metrics, records: Sequence[Record], kept: Path, task: Callable[[], Task] | None = None
) -> AuditOrder:
    """Return the input of the audit of a finished run. `task`: how another process gets it; None: the job's own."""
    spec, job = plan.spec, plan.job
    ready = [record for record in records if isinstance(record, Ready)]
    files = [file for record in records if isinstance(record, Finished) for file in record.kept]
    last = metrics.epochs[-1] if metrics.epochs else None
    # The requested settings, not those that ranks received: a setting that was lost on the way must show.
    train = spec.config["train"]
    steps = train.get("steps")
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
        unbroken=all(fault.earlier for fault in metrics.faults),
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
        length=None if steps is None else steps // spec.epochs * spec.batch_size * spec.world_size,
        norms=norms_of(records) if spec.backend in MEASURED else (),
        in_shards=spec.backend in SHARDED,
        works=works_of(records),
        parameters=ready[0].parameters if ready else None,
        whole=spec.backend in (None, "nccl", "cpu"),
        turns=turns(records),
        misplaced=misplaced(records) or ("" if metrics.faults or metrics.begun_without else out_of_turn(records)),
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
        moves=bool(metrics.begun_without) or any(":flip" in fault for fault in metrics.scripted_faults),
        one_process=engine_of(spec.engine).one_process,
        own_batches=engine_of(spec.engine).one_process and not meets_every_step(spec.policy),
        breaks=tuple(sorted(breaks(records))),
    )
