"""What to train so that there can be a verdict: more seeds of a cell, or its baseline. Commands are
`bench.results.rerun_command`'s."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.base.number_format import plural
from bench.results.cells import Cell
from bench.results.rerun_command import command, script_of, setting
from bench.results.runfolder import Run
from bench.validate.statistics import GATING_SEEDS

BASELINES = Path("runs/baselines")
"""Where runs for baselines go: `propose` takes whole trees, and this one has nothing else."""
USUAL = Path("runs")
"""Where runs go if nothing is said."""


def lacking(cell: Cell, wanted: int) -> list[int]:
    """Return the seeds that a cell lacks of so many."""
    have = {m.seed for m in cell.ok}
    return [seed for seed in range(wanted + len(have)) if seed not in have][: max(wanted - len(have), 0)]


def training(cell: Cell, wanted: int) -> str:
    """Return the command for the seeds that a cell lacks of so many, into the tree that it lies in."""
    if (script := script_of(cell.runs[0])) is not None:
        return f"with seed={_listed(lacking(cell, wanted))} in Trainer, {script}"
    return _line(cell.runs[0], lacking(cell, wanted), _tree(cell))


def seeds(cell: Cell, wanted: int) -> str:
    """Say how many seeds a cell lacks of so many, with the command for them."""
    return f"{plural(len(lacking(cell, wanted)), 'more seed')} needed: {training(cell, wanted)}"


def reference(cell: Cell) -> str:
    """Return the command for the runs of the solo baseline of what a cell trains."""
    if (script := script_of(cell.runs[0])) is not None:
        return f"with mode='solo', output='{BASELINES}' and seed={_listed(range(GATING_SEEDS))} in Trainer, {script}"
    return _line(_solo(cell.runs[0]), range(GATING_SEEDS), BASELINES)


PROPOSE = f"python -m bench baseline propose {BASELINES} --mode solo"
ACCEPT = "python -m bench baseline accept"


def baseline(cell: Cell) -> str:
    """Return the commands for the solo baseline of what a cell trains."""
    return f"{reference(cell)} && {PROPOSE} && {ACCEPT}"


def rerun(cell: Cell) -> str:
    """Return the command that trains a cell once more, all its seeds, where it lies."""
    line = _line(cell.runs[0], [run.metrics.seed for run in cell.runs], _tree(cell))
    return script_of(cell.runs[0]) or f"{line} force=true"


def _listed(seeds: Iterable[int]) -> str:
    return ",".join(map(str, seeds))


def _line(run: Run, seeds: Iterable[int], output: Path) -> str:
    runs = [replace(run, metrics=run.metrics.model_copy(update={"seed": seed})) for seed in seeds]
    return command(runs) + ("" if output == USUAL else f" {setting('output', str(output))}")


def _tree(cell: Cell) -> Path:
    """Return the tree that a cell's runs lie in; the usual one if they were moved out of one."""
    m, mode = cell.about, cell.runs[0].path.parent
    return mode.parent.parent if (mode.parent.name, mode.name) == (m.model, m.mode) else USUAL


def _solo(run: Run) -> Run:
    """Return a run of the same training by one process, on a device that is neither slowed down nor faulty."""
    plain: dict[str, Any] = {"mode": "solo", "engine": "solo", "policy": None, "backend": None, "world_size": 1}
    metrics = run.metrics.model_copy(update={**plain, "emulated_speeds": [], "scripted_faults": []})
    alone = run.metrics.engine == "solo"
    trained = ("train", "data", "loader", "code")
    kept = run.config if alone else {key: run.config[key] for key in trained if key in run.config}
    cluster = run.config.get("cluster", {})
    config = kept | {"cluster": {"device": cluster["device"]} if "device" in cluster else {}}
    if not alone and "train" in kept:
        train = config["train"] = {key: value for key, value in kept["train"].items() if key != "lr_scale_ratio"}
        if "steps" in train:  # of as many samples
            train["steps"] *= run.metrics.world_size
    return replace(run, metrics=metrics, config=config)
