"""From the configuration of one cell to what is launched: what it goes on from, its checks, its data.

Knows neither Hydra nor what becomes of the run.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.base import interrupts
from bench.base.usage import usage
from bench.config.config import Config
from bench.config.config_checks import Machine, check_faults
from bench.config.own import code_of, settled
from bench.config.plan import RunPlan, plan
from bench.models import MODELS
from bench.models.setup import Setup
from bench.results.runfolder import CONFIG, read_object
from ddp.engine.modes import engine_of
from ddp.process.cores import cores
from ddp.replica.task import epoch_samples
from ddp.settings import known
from ddp.user_code import CodeDigest

if TYPE_CHECKING:
    from bench.runner.resume import ResumeSource


def resume_source(path: str, settings: dict[str, Any]) -> ResumeSource | Path | None:
    """Return what to go on from, or the folder of a run that is finished; None: its mode makes no checkpoints. Raise
    UsageError."""
    from bench.runner.resume import NoCheckpoints, agree, locate

    with usage():
        try:
            source = locate(Path(path))
        except NoCheckpoints:
            return None
        if isinstance(source, Path):
            agree(settings, read_object(source / CONFIG))
    return source


def make_plan(
    config: Config,
    source: ResumeSource | None = None,
    hosts: int = 1,
    settings: Collection[str] = (),
    resized: Sequence[dict[str, int]] = (),
) -> RunPlan:
    """Check everything and get the data. Imports torch, while the fork server does the same in its process.

    `settings`: the keys that the user set; `resized`: of a run that there is, the numbers of ranks that it had before. Raise
    UsageError, Unusable."""
    with usage():
        config = settled(config)
        name = known("model", config.model.name, MODELS)
    if config.audit or (not engine_of(config.engine.name).in_place and config.world_size != 1):
        from ddp.process import forkserver

        forkserver.warm(("bench.models", MODELS[name], *(("bench.audit.audit",) if config.audit else ())))
    import torch

    from bench import models
    from bench.models.data import DATA, prepare
    from bench.runner.trial import tried

    machine = Machine(cores(), torch.cuda.device_count(), hosts)
    interrupts.check()
    with usage():
        setup = models.load(name)
        code = code_of(config, setup)
        if source is not None:
            _check_source(source, setup, machine, code)
            resized = source.lineage(config.world_size or 0)
        ready = plan(config, setup, DATA, machine, settings, code, resized)
        prepare(ready.recipe.data, config.data.dir, ready.recipe.data_options)
        task = tried(ready)
        if ready.job.faults:
            check_faults(ready.job, config.mode, epoch_samples(ready.job) or len(task.train_data()))
    return ready


def _check_source(source: ResumeSource, setup: Setup, machine: Machine, code: tuple[CodeDigest, ...]) -> None:
    """Raise ValueError if the configuration in a run's folder does not mean that run today."""
    from bench.models.data import DATA
    from bench.runner.resume import check, config_of

    before = settled(config_of(source.config, source.folder))
    able = replace(machine, gpus=max(machine.gpus, before.world_size or 0))  # it need not be run here as it was
    check(plan(before, setup, DATA, able, (), code, source.config.get("resized") or ()), source)
