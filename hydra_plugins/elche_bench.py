"""The harness's Hydra plug-ins: the sweeper `bench`; the launcher `bench_plan`, which shows points and runs nothing; and
the launcher of sweeps that set nothing of Hydra's.

Hydra loads every module of a folder with this name, in any Hydra application of the environment: this module must
import nothing heavy. The work is done in `bench.config.sweep_points` and `group_loader`. No `from __future__ import
annotations` here: Hydra executes the module before it is in `sys.modules`, where dataclasses would look it up.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


@dataclass
class BenchSweeperConfig:
    """Settings of the sweeper, the same as those of Hydra's own."""

    _target_: str = "hydra_plugins.elche_bench.BenchSweeper"
    max_batch_size: int | None = None
    """Most runs passed to the launcher at once; null: all."""
    params: dict[str, str] | None = None
    """Sweep of an experiment, key -> values; the command line takes precedence."""


@dataclass
class PlanLauncherConfig:
    """The launcher has no settings."""

    _target_: str = "hydra_plugins.elche_bench.PlanLauncher"


class BenchSweeper(Sweeper):
    """Enumerates the product of all choices, as Hydra's own sweeper does, and composes each choice of groups once."""

    def __init__(self, max_batch_size: int | None = None, params: dict[str, str] | None = None) -> None:
        self.max_batch_size, self.params = max_batch_size, dict(params or {})

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from bench.base.usage import UsageError
        from bench.config.sweep_points import ignored_sweeper

        if not any(word.startswith("hydra/sweeper=") for word in config.hydra.overrides.hydra):
            sweeper = ignored_sweeper(hydra_context.config_loader, config)
            if sweeper not in (None, "bench"):
                raise UsageError(f"no preset can choose the sweeper: give hydra/sweeper={sweeper} on the command line")
        self.begin(hydra_context, task_function, config, Plugins.instance().instantiate_launcher)

    def begin(
        self,
        hydra_context: HydraContext,
        task_function: TaskFunction,
        config: DictConfig,
        make_launcher: Callable[..., Launcher],
    ) -> None:
        """Set up the sweeper and a launcher that composes by our loader. `make_launcher`: takes the arguments of
        `Launcher.setup`."""
        from bench.config.group_loader import GroupLoader

        self.config: DictConfig = config
        self.hydra_context: HydraContext = hydra_context
        self.foresee = getattr(task_function, "foresee", lambda composed, overrides, params: None)
        self.loader = GroupLoader(hydra_context.config_loader)
        context = HydraContext(config_loader=self.loader, callbacks=hydra_context.callbacks)
        self.launcher: Launcher = make_launcher(hydra_context=context, task_function=task_function, config=config)

    def sweep(self, arguments: list[str]) -> list[Sequence[JobReturn]]:
        """Compose every point first, so that a bad point is refused before any run starts; then launch them."""
        from bench.config.sweep_points import batches, points

        every = points([*(f"{key}={value}" for key, value in self.params.items()), *arguments], self.loader)
        if every and any(word.startswith("policy.") for word in every[0]):
            self._check_settings(every)
        if not isinstance(self.launcher, PlanLauncher):  # which has no job that a bad point could come after
            self.validate_batch_is_legal(every)
            self._share(every)
        returns: list[Sequence[JobReturn]] = []
        for first, batch in batches(every, self.max_batch_size):
            returns.append(self.launcher.launch(batch, initial_job_idx=first))
            for job in returns[-1]:
                _ = job.return_value  # raises what was raised in the job
        return returns

    def _check_settings(self, every: Sequence[Sequence[str]]) -> None:
        """Raise HydraException for a setting that applies to no point: it is an error then, as in a single run."""
        for setting in set.intersection(*(self.loader.left_out(self.config, list(point)) for point in every)):
            self.hydra_context.config_loader.load_sweep_config(self.config, [*every[0], setting])

    def _share(self, every: Sequence[Sequence[str]]) -> None:
        """Choose the launcher that runs points side by side, if no point is timed, there is room, and the user chose
        no launcher."""
        from bench.config.sharing import CellNeeds

        if self.config.hydra.runtime.choices["hydra/launcher"] == "basic":
            needs = [CellNeeds.of(self.loader.point(self.config, list(point))) for point in every]
            self.launcher = SharingLauncher(self.launcher, needs)

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Raise HydraException for a point that does not compose; announce the others to the task."""
        for overrides in batch:
            self.foresee(self.loader.point(self.config, list(overrides)), overrides, self.params)


class PresetFolder(SearchPathPlugin):
    """Adds a user's folder of presets to Hydra's search path, as `--config-dir` does, when Hydra is started without a
    command line.

    Another module holds the folder's path: Hydra executes this module again, which makes new classes."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        folder = getattr(sys.modules.get("bench.config.preset_folder"), "folder", None)
        if folder is not None:
            search_path.append("command-line", f"file://{folder}")


class SharingLauncher(Launcher):
    """Runs points side by side if they fit (`bench.runner.side_by_side`); else in turn, like Hydra's own launcher."""

    def __init__(self, own: Launcher, needs: Sequence[Any]) -> None:
        self.own, self.needs = own, needs

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.own.setup(hydra_context=hydra_context, task_function=task_function, config=config)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from omegaconf import open_dict

        from bench.config.sharing import sharing_plan
        from bench.runner.side_by_side import launch, resources

        last = initial_job_idx + len(job_overrides)
        plan = sharing_plan(self.needs[initial_job_idx:last], resources())
        if plan is None:
            return self.own.launch(job_overrides, initial_job_idx)
        own: Any = self.own
        cells = [own.hydra_context.config_loader.load_sweep_config(own.config, list(each)) for each in job_overrides]
        for number, cell in enumerate(cells, initial_job_idx):
            with open_dict(cell):
                cell.hydra.job.id = cell.hydra.job.num = number
        print(f"{len(cells)} cells, {len(plan.variables)} at a time (timing=off)", flush=True)
        return launch(cells, plan, own.hydra_context, own.task_function)


class InTurnLauncher(Launcher):
    """Calls the task with each point in turn, without Hydra's job folder, log and copies. The task must not change the
    point."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    @classmethod
    def begun(cls, **about: Any) -> "InTurnLauncher":
        """Make a launcher that is set up. `about`: the arguments of `setup`."""
        launcher = cls()
        launcher.setup(**about)
        return launcher

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Return nothing: no job of Hydra's was started."""
        from hydra.core.hydra_config import HydraConfig

        from bench.config.group_loader import GroupLoader, name_point

        cfg_before, composed_before, loader = HydraConfig.instance().cfg, None, self.hydra_context.config_loader
        loader = loader if isinstance(loader, GroupLoader) else GroupLoader(loader)
        try:
            for overrides in self._each(job_overrides):
                composed = loader.point(self.config, list(overrides))
                if composed is not composed_before:
                    HydraConfig.instance().set_config(composed)
                name_point(HydraConfig.get(), overrides, folder=False)
                composed_before = composed
                self.task_function(composed)
        finally:
            HydraConfig.instance().cfg = cfg_before
        return []

    def _each(self, points: Sequence[Sequence[str]]) -> Iterable[Sequence[str]]:
        return points


class PlanLauncher(InTurnLauncher):
    """Shows the points to a task that runs nothing, with a bar of progress in a terminal."""

    def _each(self, points: Sequence[Sequence[str]]) -> Iterable[Sequence[str]]:
        from rich.console import Console
        from rich.progress import track

        console = Console(stderr=True)
        return track(points, "planning", console=console, transient=True, disable=not console.is_terminal)


for group, name, node in (("sweeper", "bench", BenchSweeperConfig), ("launcher", "bench_plan", PlanLauncherConfig)):
    ConfigStore.instance().store(group=f"hydra/{group}", name=name, node=node, provider="elche_bench")
