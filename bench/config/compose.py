"""Turns a command line into composed configurations, one for each point of a sweep. The only module that starts Hydra.

Hydra composes and enumerates. An error of Hydra or omegaconf becomes a UsageError with a message of our own
(`bench.config.hydra_errors`); a sweep without a run is a UsageError too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import hydra
import yaml  # type: ignore[import-untyped]
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from bench.base.console import VERBOSITY
from bench.base.paths import CONF
from bench.base.usage import UsageError, usage
from bench.config import preset_folder
from bench.config.composed import register
from bench.config.flags import read
from bench.config.hydra_errors import beyond, bracketed, complain, nameless, names_several, nowhere
from bench.config.objective import CHOOSING, direction
from bench.config.overrides import for_each_point, in_our_words, of_all, readable
from bench.config.point_task import LostPoint, PointJob, PointTask
from bench.config.sweep_points import empty, values
from bench.config.user_parts import enrolled
from ddp.process.scratch import scratch

SCRATCH = "BENCH_SCRATCH"
"""Environment variable with the folder that Hydra and its plug-ins write to; conf/config.yaml reads it."""
WORKER_KILLED = (
    "a process of the launcher was killed, as when memory is used up, and its runs have no result: run the command again, "
    "perhaps with fewer at a time"
)
"""What is said of a sweep whose launcher lost a process."""
SEARCH = "optimization_results.yaml"
"""File in which Hydra's searching sweepers write their result."""


def compose(
    arguments: list[str],
    verbs: tuple[str, ...],
    job: PointJob,
    leave_out: Callable[[str], None],
    take: Callable[[Any], None] = lambda result: None,
    planning: bool = False,
    expect: Callable[[Sequence[str]], None] = lambda overrides: None,
) -> dict[str, Any] | None:
    """Have Hydra compose every cell that `arguments` ask for, and call `job` with each cell, in this process or in
    processes of a launcher. Return the result of a searching sweeper, or None. Raise UsageError, also for a sweep
    without a run. Our sweeper composes all points before the first job, so that a bad point is refused before any
    training. `expect`: called before the first job with the overrides of each run; `take`: called with each result;
    `leave_out`: called with a line on each point of a sweep that is left out.

    `planning`: the job only reads the configuration, so that Hydra uses no launcher and copies nothing."""
    with usage():
        options, flags = read([enrolled(in_our_words(word)) for word in arguments])
    register()  # own models too
    if options.verbosity is not None:
        os.environ[VERBOSITY] = str(options.verbosity)  # for launchers' processes, too
    overrides = tuple(readable(override) for override in options.overrides)
    if not options.multirun and any(map(of_all, overrides)):
        flags = [*flags, "--multirun"]
    with scratch() as folder, _variables(folder):
        task = PointTask(job, take, leave_out, overrides, folder, expect)
        try:
            checks = (beyond, nameless, bracketed, nowhere)
            for problem in filter(None, (check(override) for override in overrides for check in checks)):
                raise UsageError(problem)
            _check_experiments(overrides, options.config_dir)
            words = for_each_point(overrides) if _sweeps(overrides, flags, options.config_dir) else overrides
            if flags not in ([], ["--multirun"]) or any(map(_of_hydra, overrides)):
                _start(task, [*flags, *(_to_plan(words) if planning else _searching(words, options.config_dir))])
            elif flags:
                _run_sweep(task, words, planning)
            else:
                _run_one(task, overrides)
            task.collect()
            if not task.jobs and not (options.cfg or options.info or options.shell_completion):
                none = "nothing to run: all of the sweep is left out"
                raise UsageError(none if task.others else _emptiness(overrides, options.config_dir))
        except RuntimeError as error:
            if not _killed_worker(error):
                raise
            task.collect()
            task.note(LostPoint("sweep", WORKER_KILLED))
        except OverflowError as error:
            raise UsageError(f"a number is too large: {error}") from error
        except (HydraException, OmegaConfBaseException) as error:
            raise UsageError(complain(_beneath(error, overrides, options.config_dir), verbs)) from error
        results = folder / SEARCH
        return dict(yaml.safe_load(results.read_text(encoding="utf-8"))) if results.is_file() else None


def _check_experiments(overrides: Sequence[str], folder: str | None) -> None:
    """Raise UsageError for several experiments of which one has a sweep of its own: Hydra would leave that out."""
    several = [word for word in overrides if word.startswith("experiment=") and set(word) & set(",(")]
    if not several:
        return
    places = [word for word in overrides if word.startswith("hydra.searchpath=")]
    with _loading(folder) as loader:
        for each in values(several[-1], loader):
            if loader.load_configuration("config", [*places, each], RunMode.RUN).hydra.sweeper.get("params"):
                raise UsageError(f"{several[-1]}: {each} is a sweep of its own: give each its own command, without -m")


def _killed_worker(error: Exception) -> bool:
    """Return whether a launcher (joblib; submitit) tells that one of its processes ended without a result."""
    return isinstance(error, BrokenExecutor) or type(error).__name__ == "UncompletedJobError"


def _sweeps(overrides: tuple[str, ...], flags: Sequence[str], folder: str | None) -> bool:
    """Return whether our sweeper will list points of these overrides, which set a policy's settings. `folder`: the user's
    presets, which may make a sweep of any command."""
    if for_each_point(overrides) == overrides or any(word.startswith("hydra/sweeper=") for word in overrides):
        return False
    own = folder is not None or any(map(_of_hydra, overrides))
    if "--multirun" in flags or not own or flags not in ([], ["--config-dir", folder]):
        return "--multirun" in flags
    with suppress(HydraException, OmegaConfBaseException), _loading(folder) as loader:  # for Hydra to refuse
        words = list(for_each_point(overrides))
        composed = loader.load_configuration("config", words, RunMode.MULTIRUN, validate_sweep_overrides=False)
        return bool(composed.hydra.mode == RunMode.MULTIRUN)
    return False


def _to_plan(overrides: tuple[str, ...]) -> list[str]:
    """Return the overrides with the launcher `bench_plan`, which only shows points, in place of any other."""
    for override in overrides:
        if override.startswith("hydra/sweeper=") and override.partition("=")[2] not in CHOOSING:
            raise UsageError(f"{override} chooses its points by the results of others: there is no plan of it")
    others = [word for word in overrides if not word.startswith(("hydra/launcher=", "hydra.launcher."))]
    return [*others, "hydra/launcher=bench_plan"]


def _searching(overrides: tuple[str, ...], folder: str | None) -> tuple[str, ...]:
    """Return the overrides; if the user chose another sweeper, also the direction of its search. `folder`: the user's
    presets."""
    if not any(word.startswith("hydra/sweeper=") and word.partition("=")[2] not in CHOOSING for word in overrides):
        return overrides
    with suppress(HydraException, OmegaConfBaseException), _loading(folder) as loader:  # for Hydra to refuse
        composed = loader.load_configuration(
            "config", list(overrides), RunMode.MULTIRUN, validate_sweep_overrides=False
        )
        return (*overrides, *direction(composed, overrides))
    return overrides


@contextmanager
def _loading(folder: str | None, conf: Path = CONF) -> Iterator[ConfigLoader]:
    """Yield Hydra's loader of the configurations in `conf`, which also searches `folder` for presets, as
    `--config-dir` does."""
    preset_folder.folder = None if folder is None else str(Path(folder).resolve())
    try:
        started = hydra.initialize_config_dir(str(conf.resolve()), version_base="1.3")
    finally:
        preset_folder.folder = None
    with started:
        yield GlobalHydra.instance().config_loader()


def _of_hydra(override: str) -> bool:
    """Tell whether the override may change Hydra's own settings, such as whether there is a sweep."""
    return override.lstrip("+~").startswith(("hydra", "experiment"))


def _run_one(task: PointTask, overrides: Sequence[str]) -> None:
    """Compose a single run and call the task, as `_start` does, which composes twice, first to look for a sweep."""
    before = HydraConfig.instance().cfg
    with _loading(None) as loader:
        composed = loader.load_configuration("config", list(overrides), RunMode.RUN)
        HydraConfig.instance().set_config(composed)
        with read_write(composed), open_dict(composed):
            del composed["hydra"]
        try:
            task(composed)
        finally:
            HydraConfig.instance().cfg = before


class _NoCallbacks:
    """Hydra's callbacks of a command that sets none, as its jobs call them."""

    def on_job_start(self, **about: Any) -> None: ...

    def on_job_end(self, **about: Any) -> None: ...


def _run_sweep(task: PointTask, overrides: Sequence[str], planning: bool) -> None:
    """Compose a sweep and call the task with its points, as `_start` does, which composes twice more, to look for a
    sweep and for a preset with a sweeper, and copies each point five times."""
    from hydra_plugins.elche_bench import BenchSweeper, InTurnLauncher, PlanLauncher

    with _loading(None) as loader:
        composed = loader.load_configuration("config", [*overrides, "hydra.mode=MULTIRUN"], RunMode.MULTIRUN)
        sweeper = BenchSweeper(composed.hydra.sweeper.max_batch_size, composed.hydra.sweeper.params)
        context = HydraContext(config_loader=loader, callbacks=_NoCallbacks())  # type: ignore[arg-type]
        sweeper.begin(context, task, composed, (PlanLauncher if planning else InTurnLauncher).begun)
        sweeper.sweep(list(overrides))


def _start(task: PointTask, words: list[str]) -> None:
    """Start Hydra by its entry point, which reads its arguments from `sys.argv`."""
    before, sys.argv = sys.argv, ["bench", *words]
    try:
        hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(task)()
    finally:
        sys.argv = before


@contextmanager
def _variables(folder: Path) -> Iterator[None]:
    """Set the environment variables that Hydra and its plug-ins read, also in child processes."""
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
def composing(conf: Path = CONF, folder: str | None = None) -> Iterator[Callable[[list[str]], DictConfig]]:
    """Yield a function that composes overrides, with Hydra's own settings, and runs nothing. `folder`: the user's
    presets. Raise UsageError."""
    register()
    try:
        with _loading(folder, conf):
            yield lambda overrides: hydra.compose("config", overrides=overrides, return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(complain(error)) from error


def settings_of(composed: DictConfig) -> dict[str, Any]:
    """Return key -> composed value, for the keys that the command line of Hydra's current job sets."""
    settings: dict[str, Any] = {}
    for override in HydraConfig.get().overrides.task:
        key, _, value = override.partition("=")
        key = key.lstrip("+~").partition("@")[0]
        selected = OmegaConf.select(composed, key, default=value)
        if OmegaConf.is_config(selected):
            selected = OmegaConf.to_container(selected)
        settings[key] = value if isinstance(selected, dict) else selected
    return settings


def _emptiness(overrides: tuple[str, ...], folder: str | None) -> str:
    """Return the error for a sweep without points: which parts of it have no values."""
    experiment = [override for override in overrides if override.startswith("experiment=")]
    with composing(folder=folder) as composed:
        params = composed(experiment).hydra.sweeper.params or {}
        parts = empty(overrides, params, GlobalHydra.instance().config_loader())
    return f"nothing to run: no values in {', '.join(parts)}" if parts else "nothing to run: the sweep is empty"


def _beneath(error: Exception, overrides: tuple[str, ...], folder: str | None) -> Exception:
    """Return the underlying error if `error` only says that a single run was given several values. Hydra takes a sweep
    that does not compose, such as a broken experiment, for a single run."""
    if not names_several(error):
        return error
    with _loading(folder) as loader:
        try:
            loader.load_configuration("config", list(overrides), RunMode.MULTIRUN, validate_sweep_overrides=False)
        except (HydraException, OmegaConfBaseException) as deeper:
            return deeper
    return error
