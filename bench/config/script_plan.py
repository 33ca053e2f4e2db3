"""Turns the arguments of a `Trainer` into a recorded run. Its configuration is like that of the bench's own models,
with the script and the digests of its task in place of a recipe. Pure.

Knows neither torch nor how digests are made.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from bench.config.config import Choice, ClusterConfig, Config, DataConfig, ModelConfig, TrainConfig
from bench.config.config_checks import Machine, speeds_of
from bench.config.plan import resolve, spec_of
from bench.config.spec import Measure, RunSpec
from bench.models.setup import Recipe
from ddp.core.policies import DEFAULT
from ddp.core.settings.checkpoints import Checkpointing
from ddp.engine.modes import Mode
from ddp.replica.task import Job

RECIPE = "script"
"""What results call the recipe of every script."""


@dataclass(frozen=True)
class Script:
    """The script of a run, and how to start it again."""

    path: str | None
    """Absolute path; None: an interactive session."""
    sha256: str | None = None
    arguments: tuple[str, ...] = ()
    folder: str = ""
    """Folder in which the script was started."""
    module: str | None = None
    """`package.module`, if the script was started by `python -m`."""
    pythonpath: tuple[str, ...] = ()
    """Absolute folders of `PYTHONPATH`, which the script's imports may need."""
    processes: int = 1
    """Processes of the script that torchrun, srun or mpirun started."""
    hosts: int = 1
    """Hosts of these processes."""


@dataclass(frozen=True)
class ScriptTask:
    """The task of a script, as results describe it."""

    name: str
    data: str
    """Kind of the data set."""
    lr: float
    """Learning rate of the optimizer's first group."""
    lr_scale_ratio: float
    schedule: str
    """`constant`, or `own`."""
    augment: bool
    digests: dict[str, str]
    """Part of the task -> its digest."""
    measure: Measure
    audited: bool
    """Whether the audit can recompute steps of it."""


def script_spec(script: Script, task: ScriptTask, job: Job, mode: Mode, output: str, machine: Machine) -> RunSpec:
    """Return the run of a checked job."""
    config = Config(
        model=ModelConfig(task.name),
        engine=Choice(mode.engine),
        policy={"name": mode.policy or DEFAULT},
        backend=Choice(job.backend),
        averaging=job.averaging,
        world_size=job.world_size,
        seed=job.seed,
        recipe=RECIPE,
        train=TrainConfig(
            lr_scale_ratio=task.lr_scale_ratio, max_grad_norm=job.max_grad_norm, steps=job.steps, **job.step.given
        ),
        data=DataConfig(name=task.data),
        loader=job.loading,
        cluster=_cluster(job),
        checkpoint=job.checkpoints or Checkpointing(every=0),
        output=output,
        audit=task.audited,
    )
    recipe = Recipe(
        data=task.data,
        epochs=job.epochs,
        batch_size=job.batch_size // job.step.accumulate,
        lr=task.lr,
        target=task.measure.target or 0.0,
        schedule=task.schedule,
        lr_scale_ratio=task.lr_scale_ratio,
        augment=task.augment,
    )
    resolved = resolve(config, recipe, job.policy, job.world_size)
    resolved["training"] |= task.digests
    resolved["script"] = asdict(script)
    training: dict[str, Any] = resolved["training"] | {
        "data": [task.data, task.digests["data"]],
        "epochs": job.epochs,
        "batch_size": job.batch_size // job.step.accumulate,
        "lr": task.lr,
        "lr_scale_ratio": task.lr_scale_ratio,
    }
    return spec_of(config, recipe, resolved, training, task.measure, machine)


def _cluster(job: Job) -> ClusterConfig:
    return ClusterConfig(
        speeds=speeds_of(list(job.speeds), job.world_size),
        device=job.device,
        transport=job.transport,
        deadline_s=job.deadline_s,
        tolerate_loss=job.tolerate_loss,
        faults=[str(fault) for fault in job.faults],
    )
