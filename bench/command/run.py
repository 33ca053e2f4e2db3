"""The verb `run`: trains one cell of the matrix, or a sweep of cells with `-m`.

Owns what a command does with the cells that Hydra composes: an error of one cell stays in its `CellOutcome`, and the
next cell runs. Knows neither engines nor records.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from traceback import format_exception
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from bench.base import interrupts
from bench.base.console import PipeSafeConsole
from bench.base.exitcodes import STATUS, Exit, gravest
from bench.base.grouping import grouped
from bench.base.usage import UsageError, reason, usage
from bench.command.cell_plan import make_plan, resume_source
from bench.command.printed import summary
from bench.command.printed.run_lines import row_line
from bench.command.printed.summary import CellOutcome, Summary
from bench.command.sweeps.sweep_progress import SweepProgress
from bench.config.command_checks import check_command
from bench.config.compose import SCRATCH, compose, settings_of
from bench.config.composed import typed
from bench.config.config import Config
from bench.config.flags import SHOWS
from bench.config.hydra_errors import complain
from bench.config.objective import objective
from bench.config.plan import RunPlan
from bench.config.point_task import LostPoint, first_to_ask
from bench.config.unused_settings import moot
from bench.loggers import RunInfo, chosen
from bench.loggers.process import LoggerProcesses
from bench.results import sweep_file
from bench.results.lease import making
from bench.results.runfolder import find_runs, finished, going_on, place
from ddp.core.errors import EngineError
from ddp.engine.modes import engine_of
from ddp.process import termination

if TYPE_CHECKING:
    from bench.dashboard.process import DashboardProcess
    from bench.runner.machines import Machines
    from bench.runner.resume import ResumeSource


def run(arguments: list[str], verbs: tuple[str, ...], baseline: Path, machines: Machines | None = None) -> Exit:
    """Train the cells that `arguments` (overrides and Hydra's flags) ask for. `verbs`: suggestions for a misspelt
    verb.

    `machines`: provides the processes for ranks; None: ranks are forked."""
    session = Session(PipeSafeConsole(highlight=False), machines)
    try:
        # The plan of an experiment is shown first: it costs a fraction of a second for each run.
        experiment = any(word.lstrip("+").startswith("experiment=") for word in arguments)
        if experiment and not any(word.partition("=")[0] in SHOWS for word in arguments):
            from bench.command.verbs.plan_command import announce

            announce(session.console, arguments, verbs)
        expect = session.progress.foresee
        search = compose(arguments, verbs, session.job, session.print, session.take, expect=expect)
        return session.conclude(baseline, search)
    finally:
        for output in {config.output for config in (session.config, *(c.config for c in session.cells)) if config}:
            sweep_file.remove(Path(output))
        if session.dashboard is not None:
            session.dashboard.close()


@dataclass
class Session:
    """The cells of one command."""

    console: PipeSafeConsole
    machines: Machines | None = None
    cells: list[CellOutcome] = field(default_factory=list)
    config: Config | None = None
    sweep: bool = False
    dashboard: DashboardProcess | None = None
    """The live page for all cells, if the user asked for one."""
    progress: SweepProgress = field(default_factory=SweepProgress)
    launched: bool = False
    """Whether this session runs one cell of the command in a launcher's process."""

    folder: Path | None = None
    """Folder of the command, if `launched`."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a fresh session: results of other cells stay in this process."""
        return Session._launched, (Path(os.environ[SCRATCH]),)

    @staticmethod
    def _launched(folder: Path) -> Session:
        console = PipeSafeConsole(highlight=False, force_terminal=False)  # the terminal is not its own
        return Session(console, launched=True, folder=folder)

    def job(self, composed: DictConfig) -> CellOutcome | str:
        """Run one cell; Hydra calls this, in this process or another. Return its outcome, or why it is left out."""
        hydra = HydraConfig.get()
        self.sweep, self.config = hydra.mode is RunMode.MULTIRUN, None
        name = " ".join(hydra.overrides.task)
        self.progress.begin()
        try:
            cell = self._cell(composed)
            if isinstance(cell, str):
                return cell
        except (UsageError, EngineError, OSError) as error:  # before the run began, or where its results are written
            interrupts.check()  # an import that was interrupted may fail in its own way
            if termination.announced() and isinstance(error, EngineError):
                raise KeyboardInterrupt from error  # the fork server was told as well, and is gone
            note = f"cannot write the results: {reason(error)}" if isinstance(error, OSError) else str(error)
            code = Exit.USAGE if isinstance(error, UsageError) else Exit.FAILED
            cell = CellOutcome(name, code, note=note, refused=True)
        except Exception as error:  # Hydra would add words of its own
            interrupts.check()
            defect = RuntimeError("".join(format_exception(error))) if self.launched else error
            cell = CellOutcome(name, Exit.INTERNAL, defect=defect)
        self.progress.end(trained=not cell.note)
        self._tell()
        value = objective(self.config.objective, cell.metrics) if self.config and cell.metrics else None
        experiment = hydra.runtime.choices.get("experiment")
        return replace(cell, swept=self.sweep, config=self.config, experiment=experiment, objective=value)

    def take(self, cell: CellOutcome | LostPoint) -> None:
        """Note the outcome of a cell. Raise KeyboardInterrupt if the cell was killed."""
        if isinstance(cell, LostPoint):
            cell = CellOutcome(cell.name, Exit.FAILED, note=cell.why, refused=True, swept=True)
        self.cells.append(cell)
        if cell.refused:
            print(f"bench: {f'{cell.title}: ' if cell.swept else ''}{cell.note}", file=sys.stderr)
        if cell.code is Exit.KILLED:
            command = going_on(cell.folder) if cell.folder is not None else ""
            self.print(f"partial results: {cell.folder}{command and f'; continue: {command}'}")
            raise KeyboardInterrupt

    def print(self, line: str, style: str | None = None) -> None:
        """Print one line as it is."""
        self.console.print(line, style=style, markup=False, soft_wrap=True)

    def _tell(self) -> None:
        """Write the progress of the sweep for the dashboard."""
        if self.sweep and not self.launched and self.config is not None and self.progress.points:
            output, progress = Path(self.config.output), self.progress
            sweep_file.write(output, len(progress.points), progress.over, progress.each)

    def _note(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.print(f"note: {line}", "yellow")

    def _cell(self, composed: DictConfig) -> CellOutcome | str:
        try:
            config = self.config = typed(composed)
            port = check_command(config)
        except (OmegaConfBaseException, ValueError) as error:  # settings check themselves
            raise UsageError(complain(error)) from error
        settings = settings_of(composed)
        ranks = self.machines.process.world_size if self.machines is not None else None
        source = resume_source(config.resume, settings) if config.resume is not None else None
        if isinstance(source, Path):
            return self._finished(source)
        if (path := config.resume) is not None:
            from bench.runner.resume import begun_anew, configured

            with usage():
                if source is not None:
                    config = configured(config, settings, source, ranks)
                else:
                    config, note = begun_anew(Path(path), config, settings, ranks)
                    self._note([note])
                self.config = config
        if port is not None and self.launched:
            self._note(
                [f"dashboard=true means nothing to a launcher's process: python -m bench dashboard {config.output}"]
            )
        elif port is not None and self.dashboard is None:
            self._open_dashboard(Path(config.output), port)
        with usage():
            loggers = chosen(config.logger)
        hosts = self.machines.process.nodes if self.machines is not None else 1
        if self.machines is not None:
            config = self.config = self.machines.settle(config)
        run_plan = make_plan(config, source, hosts, settings)
        spec = run_plan.spec
        self._tell()
        self._note(moot(settings, config, spec.mode) if source is None else ())
        again = config.force and all(cell.folder != place(*spec.key) for cell in self.cells)
        with usage():
            skipped = self.sweep and source is None and not again and finished(*spec.key, timed=spec.timing)
        if skipped:
            self.print(f"{spec.title}: finished before, skipped (force=true runs it again)")
            run = find_runs(place(*spec.key))[0][0]
            return CellOutcome(spec.title, Exit.OK, run.path, run.metrics, note="skipped")
        if self.folder is None or first_to_ask(self.folder, place(*spec.key)):
            return self._launch(run_plan, loggers, source)
        return f"{spec.title}: asked for more than once, trained once"

    def _launch(self, run_plan: RunPlan, names: tuple[str, ...], source: ResumeSource | None) -> CellOutcome:
        from bench.runner.automatic_restart import launch_with_restarts
        from bench.runner.machines import left_before
        from bench.runner.supervise import left_by_killed

        spec = run_plan.spec
        if engine_of(spec.engine).virtual:
            from ddp.virtual.engine import check_path

            with usage():
                check_path(run_plan.job)
        if self.machines is not None:
            run_plan = replace(run_plan, job=replace(run_plan.job, elsewhere=self.machines.rendezvous))
        restarts, left = left_before(place(*spec.key), self.machines)
        killed, notes = left_by_killed(place(*spec.key))
        for folder in (left, killed):
            if isinstance(folder, Path):
                return self._finished(folder)
            source = folder or source
        info = RunInfo(spec.model, spec.mode, spec.run_id, spec.config_hash, spec.world_size, spec.metric, spec.timing)
        with LoggerProcesses(names, making(place(*spec.key)), Path(spec.output), info) as loggers:
            self.console.above = self.progress.view if self.sweep and self.progress.points else None
            outcome = launch_with_restarts(run_plan, self.console, source, restarts, notes)
            wanted = names and self.config is not None and self.config.report
            lost = summary.write_own_report(outcome) if wanted else []
            problems = loggers.end(outcome.folder)
        if self.sweep:
            self.print(row_line(outcome.metrics))
            self._note(lost)  # of a single run, the command's report is the same one
        self._note(problems)
        code = gravest([STATUS[outcome.metrics.status], *(Exit.FAILED for _ in lost)])
        return CellOutcome(spec.title, code, outcome.folder, outcome.metrics)

    def _finished(self, folder: Path) -> CellOutcome:
        self.print(f"{folder}: already finished")
        run = find_runs(folder)[0][0]
        return CellOutcome(run.metrics.run_id, Exit.OK, run.path, run.metrics, note="finished before")

    def _open_dashboard(self, output: Path, port: int) -> None:
        from bench.dashboard.process import DashboardProcess

        try:
            self.dashboard = DashboardProcess(output, port)
        except OSError as error:
            if port:  # somebody is to look there
                raise UsageError(
                    f"dashboard={port}: {error}; choose another port, or dashboard=true for any"
                ) from error
            self._note([f"no dashboard: {error}"])
        else:
            self.print(f"dashboard {self.dashboard.address}")

    def conclude(self, baseline: Path, search: dict[str, Any] | None) -> Exit:
        """Print the results; for each tree that they are in, write the report and compare with the baseline. Return the
        exit code of the command.

        Re-raise an unexpected exception of a cell after the other cells are done."""
        for cell in self.cells:
            if cell.defect is not None:
                raise cell.defect
        codes = [cell.code for cell in self.cells]
        trees = grouped(
            (Path(c.config.output), c) for c in self.cells if c.config is not None and c.metrics is not None
        )
        shown = [cell for cells in trees.values() for cell in cells]
        if not shown:
            return gravest(codes)
        last, printed = shown[-1], Summary.of(self.console, shown)
        if last.swept:
            summary.show_sweep(printed, self.cells)
            if search is not None:
                summary.show_search(printed, search)
            places = {tree: (tree, out) for tree, out in summary.report_folders(trees, last.experiment).items()}
        else:
            assert last.folder is not None
            summary.show_run(printed, last)
            places = dict.fromkeys(trees, (last.folder, last.folder))
        for tree, cells in trees.items():
            if len(trees) > 1:
                self.print(f"\n{tree}")
            codes += self._judge(cells, *places[tree], baseline)
        return gravest(codes)

    def _judge(self, cells: Sequence[CellOutcome], root: Path, out: Path, baseline: Path) -> Iterator[Exit]:
        """Judge the cells of one tree and report on the tree, as far as their configuration asks for it."""
        config, printed = cells[-1].config, Summary.of(self.console, cells)
        if config is not None and config.validate:
            yield summary.judge(printed, root, baseline, [cell.folder for cell in cells if cell.folder is not None])
        if config is not None and config.report:
            yield summary.report(printed, root, out, baseline if config.validate else None)
