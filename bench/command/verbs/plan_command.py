"""The verb `plan`: which cells a command line means, which of them are not done yet, how long they will take. Trains
nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from tabulate import tabulate

from bench.base.exitcodes import Exit
from bench.base.grouping import grouped
from bench.base.number_format import plural
from bench.base.paths import RUNS
from bench.base.usage import UsageError
from bench.command.cell_plan import resolve, this_machine
from bench.config.command_checks import check_command
from bench.config.compose import compose
from bench.config.composed import typed
from bench.config.config import Config
from bench.config.spec import RunSpec
from bench.config.user_parts import settled
from bench.loggers import chosen
from bench.models import load
from bench.results.runfolder import find_runs, finished
from bench.results.schema import Metrics

USUAL_S = {"quick": 20.0}
"""Recipe -> assumed seconds of a run, if no run is recorded to estimate from."""
OTHERWISE_S = 600.0
LEAST = 0.25
"""Fraction of these seconds that a run takes however few epochs it has."""


@dataclass(frozen=True)
class Estimate:
    """Estimated seconds of one run, and the source of the estimate."""

    seconds: float
    source: str


SOURCES = {
    "this cell": ("config_hash",),
    "this mode": ("model", "data", "mode", "world_size"),
    "this model": ("model", "data"),
}
"""Sources of an estimate, the best first -> the fields in which their runs agree with the estimated run."""


@dataclass
class PlannedRuns:
    """The runs of a command line."""

    word: str = "plan"
    """The word that asks for the plan."""
    specs: list[RunSpec] = field(default_factory=list)
    done: list[bool] = field(default_factory=list)
    """By run: whether it has finished already, so that a sweep skips it."""
    impossible: list[str] = field(default_factory=list)
    """Errors of points that cannot run, a line each."""
    left_out: list[str] = field(default_factory=list)
    """Points of a sweep that are left out or repeat another point, a line each."""
    _keys: set[tuple[Path, str, str, str]] = field(default_factory=set)

    def job(self, composed: DictConfig) -> None:
        """Note one run; Hydra calls this. Raise ValueError for a run that cannot resume."""
        try:
            config, words = settled(typed(composed)), HydraConfig.get().overrides.task
            check_command(config)
            chosen(config.logger)
            if config.resume is not None:
                why = f"a run that is gone on with is as it was begun; leave out {self.word}"
                raise ValueError(f"resume={config.resume}: {why}")
            keys = [override.partition("=")[0].lstrip("+~") for override in words]
            spec = self.resolved(config, keys)
            swept = HydraConfig.get().mode is RunMode.MULTIRUN  # a run that is asked for alone is made anew
            done = swept and not config.force and finished(*spec.key, timed=spec.timing)
        except (ValueError, OmegaConfBaseException) as error:
            self.impossible.append(str(error).splitlines()[0])
            return
        if spec.key in self._keys:
            self.left_out.append(f"{spec.title}: asked for more than once, trained once")
            return
        self._keys.add(spec.key)
        self.specs.append(spec)
        self.done.append(done)

    def resolved(self, config: Config, keys: list[str]) -> RunSpec:
        """Return the run of a settled configuration. `keys`: what the user set. Raise ValueError."""
        return resolve(config, this_machine(), keys).spec


def show(arguments: list[str], verbs: tuple[str, ...], submitted: PlannedRuns | None = None) -> Exit:
    """Print the plan of a command line. `submitted`: plans for hosts other than this one. Raise UsageError."""
    planned = submitted or PlannedRuns()
    compose(arguments, verbs, planned.job, planned.left_out.append, planning=True)
    for line in table(planned, _history(planned)):
        print(line)
    return Exit.USAGE if planned.impossible else Exit.OK


def announce(console: Console, arguments: list[str], verbs: tuple[str, ...]) -> None:
    """Print one line on a sweep that is about to start, nothing on one that cannot."""
    planned = PlannedRuns()
    try:
        compose(arguments, verbs, planned.job, planned.left_out.append, planning=True)
    except UsageError:
        return
    if len(planned.specs) > 1:
        console.print(total(planned, _history(planned)), markup=False, soft_wrap=True)


def _history(planned: PlannedRuns) -> list[Metrics]:
    roots = {Path(os.path.realpath(output)) for output in (str(RUNS), *(spec.output for spec in planned.specs))}
    outer = [root for root in sorted(roots) if root.is_dir() and not roots.intersection(root.parents)]
    return [run.metrics for root in outer for run in find_runs(root)[0]]


def table(planned: PlannedRuns, history: Sequence[Metrics]) -> list[str]:
    """Return the table with a row for each cell: its seeds, how many are done, how long the others will take."""
    cells = grouped(
        ((spec.model, spec.mode, spec.world_size, spec.config_hash), index) for index, spec in enumerate(planned.specs)
    )
    rows = []
    for (model, mode, ranks, key), indices in cells.items():
        each = estimate(planned.specs[indices[0]], history)
        done = sum(planned.done[index] for index in indices)
        cost = f"{len(indices) - done} x {each.seconds:.0f} s" if done < len(indices) else "-"
        rows.append([model, mode, str(ranks), key[:8], str(len(indices)), str(done), cost, each.source])
    headers = ["model", "mode", "ranks", "cell", "seeds", "finished", "estimate", "from"]
    align = ("left", "left", "right", "left", "right", "right", "right", "left")
    lines = tabulate(rows, headers=headers, disable_numparse=True, colalign=align).splitlines() if rows else []
    lines += planned.left_out
    lines += [f"impossible: {text}" for text in planned.impossible]
    return [*lines, total(planned, history)]


def total(planned: PlannedRuns, history: Sequence[Metrics]) -> str:
    """Return a line with the numbers of runs and cells, and how long they will take."""
    left = [spec for spec, done in zip(planned.specs, planned.done, strict=True) if not done]
    costs = {key: estimate(spec, history).seconds for key, spec in {spec.config_hash: spec for spec in left}.items()}
    seconds = sum(costs[spec.config_hash] for spec in left)
    cells = plural(len({spec.config_hash for spec in planned.specs}), "cell")
    counts = f"{sum(planned.done)} finished, {len(left)} to train"
    return f"planned: {plural(len(planned.specs), 'run')} of {cells}, {counts}: about {_time(seconds)}"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def estimate(spec: RunSpec, history: Sequence[Metrics]) -> Estimate:
    """Estimate one run from the recorded runs most like it: their start-up time, and their training time scaled to its
    epochs; without such runs, by the epochs of its recipe."""
    ok = [m for m in history if m.status == "ok" and m.epochs_planned and not m.resumed and m.source is None]
    for source, fields in SOURCES.items():
        known = [m for m in ok if all(getattr(m, name) == getattr(spec, name) for name in fields)]
        if known:
            return Estimate(fmean(_scaled(m, spec) for m in known), f"{source}, {plural(len(known), 'run')}")
    usual = load(spec.model).recipes[spec.recipe].epochs
    return Estimate(USUAL_S.get(spec.recipe, OTHERWISE_S) * max(spec.epochs / usual, LEAST), "a usual run")


def _scaled(m: Metrics, spec: RunSpec) -> float:
    startup = m.time_s.startup + m.time_s.shutdown
    return startup + (m.time_s.total - startup) * spec.epochs / m.epochs_planned
