"""From the configuration of one cell to what is launched: what it goes on from, its checks, its data.

Knows neither Hydra nor what becomes of the run.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.base import interrupts
from bench.base.usage import usage
from bench.config.config import Config
from bench.config.config_checks import Machine, check_faults
from bench.config.own import code_of, settled
from bench.config.plan import RunPlan, plan
from bench.models import MODELS
from bench.results.runfolder import CONFIG, read_object
from ddp.engine.modes import engine_of
from ddp.process.cores import cores
from ddp.replica.task import epoch_samples
from ddp.settings import known

if TYPE_CHECKING:
    from bench.runner.resume import ResumeSource


def source_of(path: str, settings: dict[str, Any]) -> ResumeSource | Path:
    """Return what to go on from, or the folder of a run that is finished. Raise UsageError."""
    from bench.runner.resume import agree, locate

    with usage():
        source = locate(Path(path))
        if isinstance(source, Path):
            agree(settings, read_object(source / CONFIG))
    return source


def make_plan(
    config: Config, source: ResumeSource | None = None, hosts: int = 1, settings: Collection[str] = ()
) -> RunPlan:
    """Check everything and get the data. Imports torch, while the fork server does the same in its process.

    `settings`: the keys that the user set. Raise UsageError, Unusable."""
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
        ready = plan(config, setup, DATA, machine, settings, code_of(config, setup))
        if source is not None:
            from bench.runner.resume import check

            check(ready, source)
        prepare(ready.recipe.data, config.data.dir, ready.recipe.data_options)
        task = tried(ready)
        if ready.job.faults:
            check_faults(ready.job, config.mode, epoch_samples(ready.job) or len(task.train_data()))
    return ready
