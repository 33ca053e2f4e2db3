"""From a command line to composed configurations, one for each point of a sweep. The only module that starts Hydra.

Hydra composes and enumerates; what Hydra or omegaconf refuses becomes a UsageError in our words
(`bench.config.hydra_errors`), and so does a sweep that has no run in it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from bench.base.paths import CONF
from bench.base.usage import UsageError
from bench.config.config import register
from bench.config.flags import read
from bench.config.hydra_errors import beyond, complain, nameless, names_several
from bench.config.overrides import in_our_words, readable
from bench.config.sweep_points import empty, left_out_reason
from ddp.process.scratch import scratch

SCRATCH = "BENCH_SCRATCH"
"""Variable that names the folder of what Hydra and its plug-ins write; conf/config.yaml reads it."""


def compose(
    arguments: list[str],
    verbs: tuple[str, ...],
    job: Callable[[DictConfig], None],
    leave_out: Callable[[str], None],
    planning: bool = False,
) -> None:
    """Have Hydra compose every cell that `arguments` ask for, and call `job` with each; `leave_out` with a line on each
    point of a sweep that is no run. Raise UsageError, also for a sweep without a run. All points are composed before the
    first job, so that a bad one is refused before anything is trained.

    `planning`: the job only reads the configuration, so that no launcher is needed and nothing is copied."""
    register()
    options, flags = read([in_our_words(word) for word in arguments])
    overrides = tuple(readable(override) for override in options.overrides)
    task = Points(job, leave_out, overrides)
    with scratch() as folder, _variables(folder):
        try:
            for problem in filter(None, (beyond(override) or nameless(override) for override in overrides)):
                raise UsageError(problem)
            _start(task, [*flags, *(_to_plan(overrides) if planning else overrides)])
            if not task.jobs and not (options.cfg or options.info or options.shell_completion):
                none = "nothing to run: all of the sweep is left out"
                raise UsageError(none if task.others else _emptiness(overrides))
        except (HydraException, OmegaConfBaseException) as error:
            raise UsageError(complain(_beneath(error, overrides), verbs)) from error


@dataclass
class Points:
    """What Hydra calls with each point: the job, where the point is a run."""

    job: Callable[[DictConfig], None]
    leave_out: Callable[[str], None]
    overrides: tuple[str, ...]
    jobs: int = 0
    others: int = 0

    def __call__(self, composed: DictConfig) -> None:
        settings = HydraConfig.get()
        swept = settings.mode is RunMode.MULTIRUN
        why = left_out_reason(composed, self.overrides, settings.sweeper.params or {}) if swept else None
        if why is None:
            self.jobs += 1
            self.job(composed)
        else:
            self.others += 1
            self.leave_out(f"{' '.join(settings.overrides.task)}: left out: {why}")


def _to_plan(overrides: tuple[str, ...]) -> list[str]:
    """Return the overrides with the launcher that only shows points in place of any other."""
    for override in overrides:
        if override.startswith("hydra/sweeper=") and override.partition("=")[2] not in ("bench", "basic"):
            raise UsageError(f"{override} chooses its points by the results of others: there is no plan of it")
    others = [word for word in overrides if not word.startswith(("hydra/launcher=", "hydra.launcher."))]
    return [*others, "hydra/launcher=bench_plan"]


def _start(task: Points, words: list[str]) -> None:
    """Start Hydra by its entry point, which reads its words where every program finds them."""
    before, sys.argv = sys.argv, ["bench", *words]
    try:
        hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(task)()
    finally:
        sys.argv = before


@contextmanager
def _variables(folder: Path) -> Iterator[None]:
    """Set what Hydra and its plug-ins read, in other processes too."""
    values = {SCRATCH: str(folder), "HYDRA_FULL_ERROR": "1"}  # Hydra is to raise, not to print and exit
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def composing(conf: Path = CONF) -> Iterator[Callable[[list[str]], DictConfig]]:
    """Yield what composes overrides, with Hydra's own settings, and runs nothing. Raise UsageError."""
    register()
    try:
        with hydra.initialize_config_dir(str(conf.resolve()), version_base="1.3"):
            yield lambda overrides: hydra.compose("config", overrides=overrides, return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(complain(error)) from error


def _emptiness(overrides: tuple[str, ...]) -> str:
    """Say which part of a sweep without a point has no values."""
    experiment = [override for override in overrides if override.startswith("experiment=")]
    with composing() as composed:
        params = composed(experiment).hydra.sweeper.params or {}
        parts = empty(overrides, params, GlobalHydra.instance().config_loader())
    return f"nothing to run: no values in {', '.join(parts)}" if parts else "nothing to run: the sweep is empty"


def _beneath(error: Exception, overrides: tuple[str, ...]) -> Exception:
    """Return what keeps several values from being composed as a sweep, if that is what is wrong: Hydra takes what does not
    compose for a single run, an experiment with a mistake too."""
    if not names_several(error):
        return error
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        try:
            loader.load_configuration("config", list(overrides), RunMode.MULTIRUN, validate_sweep_overrides=False)
        except (HydraException, OmegaConfBaseException) as deeper:
            return deeper
    return error
