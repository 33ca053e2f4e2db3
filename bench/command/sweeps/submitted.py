"""A sweep run by a scheduler (`launch=`): submits its unfinished cells, shows its state (`status`), ends it
(`cancel`).

The run folders show which cells are unfinished. The sweep's folder has `sweep.json` and a result file for each cell. A
folder `.slurm-*` or `.ray-*` in the tree of runs is a sweep. Each scheduler has a module of its own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypedDict

import msgspec
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from bench.base.console import PipeSafeConsole
from bench.base.exitcodes import STATUS, Exit, gravest
from bench.base.paths import BASELINES
from bench.base.usage import UsageError
from bench.base.writing import write_text
from bench.command.cell_plan import resolve
from bench.command.printed.summary import CellOutcome
from bench.command.run import Session
from bench.command.verbs.plan_command import PlannedRuns
from bench.config.compose import compose
from bench.config.composed import typed
from bench.config.config import Config
from bench.config.config_checks import Machine
from bench.config.flags import SHOWS, read
from bench.config.launch_settings import LAUNCHERS, RaySettings, Settings, SlurmSettings
from bench.config.launched_checks import launched
from bench.config.spec import RunSpec
from bench.config.unused_settings import of_other_policy
from bench.config.user_parts import in_new_process
from bench.results.lease import HOST
from bench.results.runfolder import FAILED, METRICS, find_runs, place
from bench.runner.submitted_cell import STOP, SWEEP, log_file, remove_key, result_file
from ddp.regular_files import content
from ddp.settings import MAX_WORLD


class SweepNote(TypedDict):
    """Content of `sweep.json` that is relied on."""

    job: str
    cells: list[list[str]]
    places: list[str]


@dataclass
class Points(PlannedRuns):
    """The runs of a command line, each with its overrides, planned for the hosts of a scheduler."""

    settings: Settings = field(default_factory=SlurmSettings)
    presets: list[str] = field(default_factory=list)
    """Words of the command line that name the folders of presets."""
    points: list[list[str]] = field(default_factory=list)
    outcomes: list[CellOutcome] = field(default_factory=list)
    """Outcome of each run, as far as it is known at submission."""

    def job(self, composed: DictConfig) -> None:
        before, hydra = len(self.specs), HydraConfig.get()
        super().job(composed)
        if len(self.specs) > before:
            swept, experiment = hydra.mode is RunMode.MULTIRUN, hydra.runtime.choices.get("experiment")
            title, config = self.specs[-1].title, typed(composed)
            self.outcomes.append(CellOutcome(title, Exit.OK, config=config, experiment=experiment, swept=swept))
            alone = [] if swept else ["force=true"]  # it is made anew
            words = (word for word in hydra.overrides.task if not of_other_policy(word, config))  # no sweep there
            self.points.append([*self.presets, *map(in_new_process, words), *alone])

    def resolved(self, config: Config, keys: list[str]) -> RunSpec:
        """Return the run with the launcher's number of ranks. Assumes hosts with the requested resources: each host
        checks its own. Raise ValueError for a configuration that ranks of several hosts cannot have."""
        own, ranks = self.settings, self.settings.nodes * self.settings.ranks
        if own.nodes > 1:
            started = f"launch.nodes={own.nodes} launch.ranks={own.ranks} start"
            config = launched(config, ranks, own.nodes, started, "leave out launch.nodes")
        gpus = MAX_WORLD if config.cluster.device == "cuda" or config.cluster.transport == "nccl" else 0
        return resolve(config, Machine(MAX_WORLD, gpus, own.nodes), keys).spec


def submit(arguments: list[str], verbs: tuple[str, ...], settings: Settings) -> Exit:
    """Submit the unfinished cells of a sweep; return the gravest exit code of the cells that the command waits for.
    Raise UsageError."""
    scheduler = module("ray" if isinstance(settings, RaySettings) else "slurm")
    shows = bool(SHOWS & {word.partition("=")[0] for word in arguments})
    if not shows:
        scheduler.demand()
    planned = Points(word="launch", settings=settings, presets=_presets(arguments))
    compose(arguments, verbs, planned.job, planned.left_out.append, planning=True)
    if planned.impossible:
        raise UsageError(planned.impossible[0])
    if shows:
        return Exit.OK
    each = zip(planned.specs, planned.points, planned.done, strict=True)
    undone = {str(place(*spec.key).absolute()): point for spec, point, done in each if not done}
    waiting = {name: folder for output in {spec.output for spec in planned.specs} for name, folder in under_way(output)}
    left = {name: point for name, point in undone.items() if name not in waiting}
    elsewhere = sorted({str(folder) for name, folder in waiting.items() if name in undone})
    more = f", {len(undone) - len(left)} are under way: see {', '.join(elsewhere)}" if elsewhere else ""
    print(f"{len(planned.points)} cells, {len(left)} left to do{more}", flush=True)
    code: Exit = scheduler.submit(Path(planned.specs[0].output), left, settings) if left else Exit.OK
    over = not elsewhere and (settings.wait if isinstance(settings, SlurmSettings) else code is not Exit.KILLED)
    return gravest([code, _concluded(planned)]) if over or not undone else code


def _concluded(planned: Points) -> Exit:
    """Print the results of the runs, as `run` does for its own runs; return the gravest exit code."""
    session = Session(PipeSafeConsole(highlight=False))
    for spec, outcome in zip(planned.specs, planned.outcomes, strict=True):
        folders = [place(*spec.key), place(*spec.key).with_name(spec.run_id + FAILED)]
        runs = [run for folder in folders if folder.is_dir() for run in find_runs(folder)[0]]
        for run in sorted(runs, key=lambda run: (run.path / METRICS).stat().st_mtime)[-1:]:
            known = replace(outcome, code=STATUS[run.metrics.status], folder=run.path, metrics=run.metrics)
            outcome = replace(known, note="trained elsewhere")
        session.cells.append(outcome)
    return session.conclude(BASELINES, None)


def _presets(arguments: list[str]) -> list[str]:
    """Return the words of a command line that name the folders of presets, with absolute paths."""
    options, _ = read(arguments)
    flag = [] if options.config_dir is None else ["--config-dir", str(Path(options.config_dir).absolute())]
    return flag + [word for word in options.overrides if word.startswith("hydra.searchpath=")]


def under_way(output: str) -> Iterator[tuple[str, Path]]:
    """Iterate over the unfinished cells of the live sweeps in a tree: (place of the cell's run, folder of its
    sweep)."""
    for folder in _sweeps(Path(output)):
        try:
            places = enumerate(about(folder)["places"])
        except UsageError as error:
            print(f"bench: {error}", file=sys.stderr)
            continue
        left = [name for number, name in places if not result_file(folder, number).exists()]
        if not left:
            remove_key(folder)
        if left and module(_scheduler(folder)).live(folder):
            yield from ((name, folder) for name in left)


def module(name: str) -> ModuleType:
    """Return the module of a scheduler."""
    return import_module(f"{__package__}.{name}_sweep")


def new_folder(output: Path, name: str) -> Path:
    """Make the folder of a new sweep for scheduler `name`."""
    folder = (output / f".{name}-{time.strftime('%Y%m%d-%H%M%S')}-{time.monotonic_ns() % 1000:03}").absolute()
    folder.mkdir(parents=True)
    return folder


def about(folder: Path) -> dict[str, Any]:
    """Return the content of `sweep.json`, written at submission: job, cells, places and tasks. Raise UsageError."""
    with suppress(ValueError, RecursionError):
        noted = json.loads(content(folder / SWEEP))
        if isinstance(noted, dict) and _scheduler(folder) in LAUNCHERS:
            noted = {"job": "", "cells": [], "places": [], "tasks": 0} | noted
            if msgspec.convert(noted, SweepNote)["job"]:
                return noted
    raise UsageError(f"{folder / SWEEP}: not what is noted of a sweep; remove {folder} if its job is over")


def note(folder: Path, job: str, cells: dict[str, list[str]], tasks: int) -> None:
    """Write `sweep.json`. `cells`: place of a run -> the overrides of its cell."""
    noted = {"job": job, "cells": [*cells.values()], "places": [*cells], "tasks": tasks}
    text = json.dumps(noted | {"pid": os.getpid(), "host": HOST}, indent=1)
    write_text(folder / SWEEP, text + "\n")


def codes_of(folder: Path) -> list[Exit]:
    """Return the exit codes of the finished cells; an unknown code counts as a failure."""
    files = [result_file(folder, number) for number in range(len(about(folder)["cells"]))]
    return [_result(file)[0] for file in files if file.exists()]


def _result(file: Path) -> tuple[Exit, str]:
    """Return the exit code of a finished cell, and why it has no run (empty: it has one). Raise OSError if the file cannot
    be read now, which says nothing about the cell."""
    with suppress(ValueError, KeyError, RecursionError):
        result = json.loads(content(file))
        if isinstance(result, dict):
            return Exit(result["code"]), str(result.get("why", ""))
    return Exit.FAILED, ""


def show(folder: Path) -> Exit:
    """Print the state of a sweep; return the gravest exit code of its cells."""
    lines, codes = summary(folder)
    print(*lines, sep="\n")
    if len(codes) == len(about(folder)["cells"]):
        remove_key(folder)
    return gravest(codes)


def summary(folder: Path) -> tuple[list[str], list[Exit]]:
    """Return the state of a sweep as lines of text, and the exit codes of its finished cells. Raise OSError."""
    noted, codes = about(folder), codes_of(folder)
    ends = Counter(map(_word, codes))
    where = module(_scheduler(folder)).standing(folder)
    of_them = f"{ends['failed']} of them failed" + (f", {ends['diverged']} diverged" if ends["diverged"] else "")
    lines = [f"job {noted['job']}: {len(codes)} of {len(noted['cells'])} cells done, {of_them}; {where}"]
    for number, words in enumerate(noted["cells"]):
        if (file := result_file(folder, number)).exists() and (result := _result(file))[0]:
            why = result[1] or f"see {log_file(folder, number, 0)}"
            lines.append(f"{_word(result[0])}: {' '.join(words)}: {why}")
    return lines, codes


def _word(code: Exit) -> str:
    """Return how a cell ended, as a word. A scheduler's cell is not validated, so its regression is a loss that is not
    finite."""
    return {Exit.OK: "ok", Exit.REGRESSION: "diverged"}.get(code, "failed")


def _scheduler(folder: Path) -> str:
    return folder.name.lstrip(".").partition("-")[0]


def latest(path: Path) -> Path:
    """Return the folder of the latest sweep in a tree of runs, or `path` itself if it is a sweep. Raise UsageError."""
    path = Path(os.path.realpath(path))
    folders = [path] if (path / SWEEP).is_file() else _sweeps(path)
    if not folders:
        raise UsageError(f"{path}: no sweep was submitted from there: launch=slurm or launch=ray does")
    folder = max(folders, key=lambda folder: folder.name.partition("-")[2])
    about(folder)
    return folder


def _sweeps(path: Path) -> list[Path]:
    return [folder for name in LAUNCHERS for folder in path.glob(f".{name}-*") if (folder / SWEEP).is_file()]


def status(path: Path) -> Exit:
    """Print the state of the latest sweep of a tree."""
    return show(latest(path))


def cancel(path: Path) -> Exit:
    """Cancel the latest sweep of a tree, and wait for its end."""
    folder = latest(path)
    (folder / STOP).touch()
    problem = module(_scheduler(folder)).cancel(folder)
    if problem:
        print(problem)
        return Exit.FAILED
    remove_key(folder)
    show(folder)
    return Exit.OK
