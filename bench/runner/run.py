"""The verb `run`: one cell of the matrix, or with `-m` a sweep of them. The only module that talks to Hydra at run time.

Hydra composes configurations and enumerates sweeps; what goes wrong in a cell stays in its `CellOutcome`, and the next
one runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from bench.base import environment, interrupts
from bench.base.exitcodes import STATUS, Exit, gravest
from bench.base.usage import UsageError, reason, usage
from bench.command import summary
from bench.command.compose import compose
from bench.command.hydra_errors import complain
from bench.command.summary import CellOutcome
from bench.loggers import chosen
from bench.loggers.info import RunInfo
from bench.loggers.process import LoggerProcesses
from bench.models import MODELS
from bench.results.runfolder import CONFIG, find_runs, finished, going_on, making, place, read_object
from bench.runner.config import Config, typed
from bench.runner.config_checks import Machine, check_faults, check_paths
from bench.runner.plan import RunPlan, plan
from bench.runner.unused_settings import moot
from ddp.core.errors import EngineError
from ddp.engine import facts
from ddp.process.clock import now
from ddp.registered import blamed
from ddp.suggest import unknown

if TYPE_CHECKING:
    from bench.dashboard.process import DashboardProcess
    from bench.runner.machines import Machines
    from bench.runner.resume import ResumeSource


def run(arguments: list[str], verbs: tuple[str, ...], baseline: Path, machines: Machines | None = None) -> Exit:
    """Train what `arguments` (overrides and Hydra's flags) ask for. `verbs`: words that a misspelt one may have meant.

    `machines`: who has processes for ranks; None: ranks are forked."""
    session = Session(PipeSafeConsole(highlight=False), machines)
    try:
        return _run(session, arguments, verbs, baseline)
    finally:
        session.close()


def _run(session: Session, arguments: list[str], verbs: tuple[str, ...], baseline: Path) -> Exit:
    known = False
    if _is_experiment(arguments):
        from bench.command.planning import announce

        known = announce(session.console, arguments, verbs)
    compose(arguments, verbs, session.job, session.leave_out, ahead=not known)
    return session.conclude(baseline)


def _is_experiment(arguments: list[str]) -> bool:
    """Whether the plan is shown first: it costs a fraction of a second for each run. Not where Hydra only shows."""
    shows = {"--cfg", "-c", "--info", "-i", "--help", "-h", "--hydra-help", "--shell-completion", "-sc"}
    asked = any(word.lstrip("+").startswith("experiment=") for word in arguments)
    return asked and not any(word.partition("=")[0] in shows for word in arguments)


class PipeSafeConsole(Console):
    """A console whose reader may leave (`| head`), or whose disk may be full: the run goes on unseen, and its results are
    written."""

    def print(self, *objects: Any, **how: Any) -> None:
        """As a console's; what cannot be written is the last of it."""
        try:
            super().print(*objects, **how)
        except OSError as error:
            with suppress(OSError):
                print(f"bench: nothing more can be shown ({reason(error)}); the run goes on", file=sys.stderr)
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        """Print nothing more."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@dataclass
class Session:
    """The cells of one command."""

    console: Console
    machines: Machines | None = None
    cells: list[CellOutcome] = field(default_factory=list)
    config: Config | None = None
    """Of the last cell; what concerns the command as a whole is the same in all."""
    defect: Exception | None = None
    """Ours, not the user's nor the world's: the first one that came out of a cell."""
    sweep: bool = False
    experiment: str | None = None
    beside: DashboardProcess | None = None
    """The live page, if one was asked for: the same for all cells."""

    def job(self, composed: DictConfig) -> None:
        """Run one cell; Hydra calls this. Raises KeyboardInterrupt when the cell was killed."""
        hydra = HydraConfig.get()
        self.sweep = hydra.mode is RunMode.MULTIRUN
        self.experiment = hydra.runtime.choices.get("experiment")
        name = " ".join(hydra.overrides.task)
        try:
            cell = self._cell(composed)
        except (UsageError, EngineError, OSError) as error:  # before the run began, or where its results are written
            interrupts.check()  # an import that was interrupted may fail in its own way
            said = f"cannot write the results: {error}" if isinstance(error, OSError) else str(error)
            print(f"bench: {f'{name}: ' if self.sweep else ''}{said}", file=sys.stderr)
            cell = CellOutcome(name, Exit.USAGE if isinstance(error, UsageError) else Exit.FAILED, note=said)
        except Exception as error:  # Hydra would add words of its own
            interrupts.check()
            self.defect = self.defect or error
            cell = CellOutcome(name, Exit.INTERNAL)
        self.cells.append(cell)
        if cell.code is Exit.KILLED:
            more = going_on(cell.folder) if cell.folder is not None else ""
            said = f"what there is lies in {cell.folder}{more and f'; go on with it: {more}'}"
            self.console.print(said, markup=False, soft_wrap=True)
            raise KeyboardInterrupt

    def leave_out(self, line: str) -> None:
        """Say that a point of a sweep is no run."""
        self.console.print(line, markup=False, soft_wrap=True)

    def _cell(self, composed: DictConfig) -> CellOutcome:
        try:
            config = self.config = typed(composed)
            check_paths(config)
        except (OmegaConfBaseException, ValueError) as error:  # settings check themselves
            raise UsageError(complain(error)) from error
        for group in {"model", "engine", "policy", "backend"} - HydraConfig.get().runtime.choices.keys():
            raise UsageError(f"{group}=[...] chooses several at once: leave out the brackets, and add -m for a sweep")
        source: ResumeSource | None = None
        words = _said(composed)
        if config.resume is not None:
            from bench.runner.resume import configured

            found = self._source(Path(config.resume), words)
            if isinstance(found, CellOutcome):
                return found
            source = found
            with usage():
                config = self.config = configured(config, words, source)
        if config.dashboard and self.beside is None:
            self._open_dashboard(Path(config.output))
        with usage():
            names = chosen(config.logger)
        hosts = 1
        if self.machines is not None:
            config = self.config = self.machines.settle(config)
            hosts = self.machines.seat.nodes
        run_plan = make_plan(config, source, hosts, words)
        spec = run_plan.spec
        self._note(moot(words, config, spec.mode) if source is None else ())
        key = (Path(spec.output), spec.model, spec.mode, spec.run_id)
        title = f"{spec.model} {spec.mode} {spec.run_id}"
        anew = config.force and all(cell.folder != place(*key) for cell in self.cells)
        with usage():
            skipped = self.sweep and source is None and not anew and finished(*key)
        if skipped:
            self.console.print(f"{title}: finished before, skipped (force=true runs it again)", soft_wrap=True)
            run = find_runs(place(*key))[0][0]
            return CellOutcome(title, Exit.OK, run.path, run.metrics, note="skipped")
        return self._launch(run_plan, names, source)

    def _launch(self, run_plan: RunPlan, names: tuple[str, ...], source: ResumeSource | None) -> CellOutcome:
        from bench.runner.launch import launch

        spec, restarts = run_plan.spec, 0
        key = (Path(spec.output), spec.model, spec.mode, spec.run_id)
        if self.machines is not None:
            run_plan = replace(run_plan, job=replace(run_plan.job, elsewhere=self.machines.rendezvous))
            restarts, left = self.machines.seat.restarts, self.machines.left(place(*key))
            if isinstance(left, Path):
                return self._finished(left)
            source = left or source
        said = RunInfo(spec.model, spec.mode, spec.run_id, spec.config_hash, spec.world_size, spec.metric, now())
        with LoggerProcesses(names, making(*key), key[0], said) as loggers:
            outcome = launch(run_plan, self.console, source, restarts)
            problems = loggers.end(outcome.folder)
        self._note(problems)
        title = f"{spec.model} {spec.mode} {spec.run_id}"
        return CellOutcome(title, STATUS[outcome.metrics.status], outcome.folder, outcome.metrics)

    def _note(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.console.print(f"note: {line}", style="yellow", markup=False, soft_wrap=True)

    def _source(self, path: Path, said: dict[str, Any]) -> ResumeSource | CellOutcome:
        """What to go on from; the cell of a run that is finished."""
        from bench.runner.resume import agree, locate

        with usage():
            found = locate(path)
            if not isinstance(found, Path):
                return found
            agree(said, read_object(found / CONFIG))
        return self._finished(found)

    def _finished(self, folder: Path) -> CellOutcome:
        self.console.print(f"{folder}: finished before, there is nothing to go on with", soft_wrap=True)
        run = find_runs(folder)[0][0]
        return CellOutcome(run.metrics.run_id, Exit.OK, run.path, run.metrics, note="finished before")

    def _open_dashboard(self, output: Path) -> None:
        from bench.dashboard.process import DashboardProcess

        try:
            self.beside = DashboardProcess(output)
        except OSError as error:  # a run without a page is a run
            self.console.print(f"note: no dashboard: {error}", style="yellow", markup=False, soft_wrap=True)
        else:
            self.console.print(f"dashboard {self.beside.address}", markup=False, soft_wrap=True)

    def close(self) -> None:
        """End what was started for the command as a whole."""
        if self.beside is not None:
            self.beside.close()

    def conclude(self, baseline: Path) -> Exit:
        """Print what came out, write the report, compare with the baseline; the exit code of the command.

        Raises what came out of a cell as a defect, once the others are done.
        """
        if self.defect is not None:
            raise self.defect
        codes = [cell.code for cell in self.cells]
        shown = [cell for cell in self.cells if cell.metrics is not None]
        if self.config is None or not shown:
            return gravest(codes)
        if self.sweep:
            root, name = Path(self.config.output), self.experiment or Path(self.config.output).resolve().name
            out = Path("reports") / name
            summary.show_sweep(self.console, self.cells)
        else:
            assert shown[0].folder is not None
            root = out = shown[0].folder
            summary.show_run(self.console, shown[0])
        if self.config.validate:
            own = [cell.folder for cell in self.cells if cell.folder is not None]
            codes.append(summary.judge(self.console, root, baseline, own))
        if self.config.report:
            summary.report(self.console, root, out, baseline if self.config.validate else None)
        return gravest(codes)


def _said(composed: DictConfig) -> dict[str, Any]:
    """What the command line says, by key, as it was composed."""
    said: dict[str, Any] = {}
    for word in HydraConfig.get().overrides.task:
        key, _, value = word.partition("=")
        key = key.lstrip("+~").partition("@")[0]
        chosen = OmegaConf.select(composed, key, default=value)
        if OmegaConf.is_config(chosen):
            chosen = OmegaConf.to_container(chosen)
        said[key] = value if isinstance(chosen, dict) else chosen
    return said


def make_plan(
    config: Config, source: ResumeSource | None = None, hosts: int = 1, said: Collection[str] = ()
) -> RunPlan:
    """Everything checked and the data at hand. Imports torch, while the fork server does the same in its process."""
    name = config.model.name
    if name not in MODELS:
        raise UsageError(unknown("model", name, MODELS))
    if not facts(config.engine.name).one_process and config.world_size != 1:
        from ddp.process import forkserver

        forkserver.warm((MODELS[name], "sklearn.datasets"))  # the bundled data's reader takes a second to import
    import torch

    from bench import models
    from bench.models.data import DATA, prepare

    machine = Machine(environment.cores(), torch.cuda.device_count(), hosts)
    interrupts.check()
    with usage():
        ready = plan(config, models.load(name), DATA, machine, said)
        if source is not None:
            from bench.runner.resume import check

            check(ready, source)
        prepare(ready.recipe.data, config.data.dir, ready.recipe.data_options)
        with blamed("model", name, MODELS[name], ValueError):
            task = ready.job.task()
            task.model()  # which may refuse the data, or its depth
        if ready.job.faults:
            check_faults(ready.job, config.engine.name, config.policy["name"], len(task.train_data()))
    return ready
