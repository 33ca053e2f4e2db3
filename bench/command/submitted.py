"""A sweep that a scheduler has: what is left to submit, how it stands, and its end: `launch=`, `status`, `cancel`.

What is left to do comes from the run folders, what came of it from files in the sweep's folder: `sweep.json`, and one for
each cell. A folder `.slurm-*` or `.ray-*` of the tree of runs is a sweep. Each scheduler has a module of its own.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from bench.base.exitcodes import Exit, gravest
from bench.base.usage import UsageError
from bench.command.plan_command import PlannedRuns
from bench.config.compose import compose
from bench.config.launch_settings import LAUNCHERS, RaySettings, Settings
from bench.runner.submitted_cell import STOP, result_file
from ddp.regular_files import content

SWEEP = "sweep.json"


@dataclass
class Points(PlannedRuns):
    """The runs of a command line, with the overrides of each."""

    points: list[list[str]] = field(default_factory=list)

    def job(self, composed: DictConfig) -> None:
        before = len(self.specs)
        super().job(composed)
        if len(self.specs) > before:
            self.points.append([str(word) for word in HydraConfig.get().overrides.task])


def submit(arguments: list[str], verbs: tuple[str, ...], settings: Settings) -> Exit:
    """Submit what is left of a sweep; return the gravest code of its cells, as far as it is waited for. Raise UsageError."""
    scheduler = module("ray" if isinstance(settings, RaySettings) else "slurm")
    scheduler.demand()
    planned = Points()
    compose(arguments, verbs, planned.job, planned.left_out.append, planning=True)
    if planned.impossible:
        raise UsageError(planned.impossible[0])
    left = [point for point, done in zip(planned.points, planned.done, strict=True) if not done]
    print(f"{len(planned.points)} cells, {len(left)} left to do", flush=True)
    if not left:
        return Exit.OK
    code: Exit = scheduler.submit(Path(planned.specs[0].output), left, settings)
    return code


def module(name: str) -> ModuleType:
    """Return the module of a scheduler."""
    return import_module(f"bench.command.{name}_sweep")


def new_folder(output: Path, name: str) -> Path:
    """Make the folder of a sweep that this scheduler gets."""
    folder = (output / f".{name}-{time.strftime('%Y%m%d-%H%M%S')}-{time.monotonic_ns() % 1000:03}").absolute()
    folder.mkdir(parents=True)
    return folder


def about(folder: Path) -> dict[str, Any]:
    """Return what was noted of a sweep when it was submitted: its job, cells and tasks."""
    noted: dict[str, Any] = json.loads(content(folder / SWEEP))
    return noted


def note(folder: Path, job: str, cells: list[list[str]], tasks: int) -> None:
    """Note what was submitted."""
    text = json.dumps({"job": job, "cells": cells, "tasks": tasks}, indent=1)
    (folder / SWEEP).write_text(text + "\n", encoding="utf-8")


def codes_of(folder: Path) -> list[Exit]:
    """Return the exit codes of the cells that are done; an unknown one is that of a failure."""
    files = [result_file(folder, number) for number in range(len(about(folder)["cells"]))]
    codes = [json.loads(content(file))["code"] for file in files if file.exists()]
    return [Exit(code) if code in set(Exit) else Exit.FAILED for code in codes]


def show(folder: Path) -> Exit:
    """Print how a sweep stands; return the gravest code of its cells."""
    noted, codes = about(folder), codes_of(folder)
    failed = sum(code != 0 for code in codes)
    where = module(_scheduler(folder)).standing(folder)
    print(f"job {noted['job']}: {len(codes)} of {len(noted['cells'])} cells done, {failed} of them failed; {where}")
    return gravest(codes)


def _scheduler(folder: Path) -> str:
    return folder.name.lstrip(".").partition("-")[0]


def latest(path: Path) -> Path:
    """Return the folder of the latest sweep in a tree of runs, or the folder itself. Raise UsageError."""
    if (path / SWEEP).is_file():
        return path
    folders = [folder for name in LAUNCHERS for folder in path.glob(f".{name}-*") if (folder / SWEEP).is_file()]
    if not folders:
        raise UsageError(f"{path}: no sweep was submitted from there: launch=slurm or launch=ray does")
    return max(folders, key=lambda folder: folder.name.partition("-")[2])


def status(path: Path) -> Exit:
    """Print how the latest sweep of a tree stands."""
    return show(latest(path))


def cancel(path: Path) -> Exit:
    """Cancel the latest sweep of a tree, and see it gone."""
    folder = latest(path)
    (folder / STOP).touch()
    problem = module(_scheduler(folder)).cancel(folder)
    if problem:
        print(problem)
        return Exit.FAILED
    show(folder)
    return Exit.OK
