"""Turns the configuration of one cell into a plan to launch: finds its checkpoint, checks its settings, prepares its
data.

Knows neither Hydra nor the results of the run.
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
from bench.config.plan import RunPlan, plan
from bench.config.user_parts import code_of, settled
from bench.models import MODELS
from ddp.backends import preload_of
from ddp.engine.modes import engine_of
from ddp.process.cores import cores
from ddp.replica.task import epoch_samples

if TYPE_CHECKING:
    from bench.runner.resume import ResumeSource


def resume_source(path: str, settings: dict[str, Any]) -> ResumeSource | Path | None:
    """Return the run to resume, or the folder of a run that has finished already; None if its mode makes no
    checkpoints. Raise UsageError."""
    from bench.runner.resume import NoCheckpoints, check_finished, locate

    with usage():
        try:
            source = locate(Path(path))
        except NoCheckpoints:
            return None
        if isinstance(source, Path):
            check_finished(settings, source)
    return source


def make_plan(
    config: Config,
    source: ResumeSource | None = None,
    hosts: int = 1,
    settings: Collection[str] = (),
    resized: Sequence[dict[str, int]] = (),
    trained: bool = False,
) -> RunPlan:
    """Check all settings, get the data and return the plan. Imports torch while the fork server imports it in its own
    process.

    `settings`: the keys that the user set; `resized`: the earlier numbers of ranks of an existing run; `trained`: whether
    the plan is of a finished run, for which this machine needs no GPUs. Raise UsageError, Unusable."""
    with usage():
        config = settled(config)
    if config.audit or (not engine_of(config.engine.name).in_place and config.world_size != 1):
        from ddp.process import forkserver

        audit = ("bench.audit.audit",) if config.audit else ()
        forkserver.warm(("bench.models", MODELS[config.model.name], *preload_of(config.mode.backend), *audit))
    machine = this_machine(hosts)
    machine = _able(machine, config) if trained else machine
    from bench.models.data import prepare
    from bench.runner.preflight import checked_task

    interrupts.check()
    with usage():
        if source is not None:
            _check_source(source, machine)
            resized = source.lineage(config.world_size or 0)
        ready = resolve(config, machine, settings, resized)
        prepare(ready.recipe.data, config.data.dir, ready.recipe.data_options)
        task = checked_task(ready)
        if ready.job.faults:
            check_faults(ready.job, config.mode, epoch_samples(ready.job) or len(task.train_data()))
    return ready


def this_machine(hosts: int = 1) -> Machine:
    """Return the cores and GPUs of this machine, as one of `hosts` equal machines. Imports torch."""
    import torch

    return Machine(cores(), torch.cuda.device_count(), hosts)


def resolve(
    config: Config,
    machine: Machine,
    settings: Collection[str] = (),
    resized: Sequence[dict[str, int]] = (),
) -> RunPlan:
    """Return the plan of a settled configuration, as `make_plan` does, without reading the data. Raise ValueError,
    Unusable."""
    from bench import models
    from bench.models.data import DATA

    setup = models.load(config.model.name)
    return plan(config, setup, DATA, machine, settings, code_of(config, setup), resized)


def _check_source(source: ResumeSource, machine: Machine) -> None:
    """Raise ValueError if the configuration in a run's folder now makes another run than it did then."""
    from bench.runner.resume import check
    from bench.runner.saved_config import config_of

    before = settled(config_of(source.config, source.folder))
    check(resolve(before, _able(machine, before), resized=source.config.get("resized") or ()), source)


def _able(machine: Machine, config: Config) -> Machine:
    """Return a machine that could have trained an existing run, which need not be run here as it was."""
    on_cpus = config.cluster.transport == "memory"
    return replace(machine, gpus=0 if on_cpus else max(machine.gpus, config.world_size or 0))
