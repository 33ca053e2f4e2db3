"""Commands that train what a verdict lacks: more seeds of a cell, or its baseline. `bench.results.rerun_command`
formats them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.base import paths
from bench.base.number_format import plural
from bench.config.overrides import setting
from bench.results.cells import Cell
from bench.results.rerun_command import command, script_of
from bench.results.runfolder import Run
from bench.validate.statistics.significance import GATING_SEEDS

BASELINES = Path("runs/baselines")
"""Output folder of runs for baselines. `propose` reads whole trees, and this one holds nothing else."""
USUAL = Path("runs")
"""The default output folder of runs."""


def lacking(cell: Cell, wanted: int) -> list[int]:
    """Return the seeds that a cell lacks to have `wanted` of them."""
    have = {m.seed for m in cell.ok}
    return [seed for seed in range(wanted + len(have)) if seed not in have][: max(wanted - len(have), 0)]


def training(cell: Cell, wanted: int) -> str:
    """Return the command that trains the missing seeds, into the cell's own tree."""
    if (script := script_of(cell.runs[0])) is not None:
        return _by_hand(cell.runs[0], f"seed={_listed(lacking(cell, wanted))}", script)
    return _line(cell.runs[0], lacking(cell, wanted), _tree(cell))


def seeds(cell: Cell, wanted: int) -> str:
    """Say how many seeds are missing, with the command that trains them."""
    return f"{plural(len(lacking(cell, wanted)), 'more seed')} needed: {training(cell, wanted)}"


def reference(cell: Cell, shown: Cell | None = None) -> str:
    """Return the command that trains the runs of the solo baseline for a cell. `shown`: the cell whose command says how
    a script trains this workload, so that there is one line for each baseline; None: the cell itself."""
    run = (shown or cell).runs[0]
    if script_of(cell.runs[0]) is not None and (script := script_of(run)) is not None:
        seeds = _listed(range(GATING_SEEDS))
        return _by_hand(run, f"seed={seeds}, mode='solo', world_size=1, output='{BASELINES}'", script)
    return _line(_solo(cell.runs[0]), range(GATING_SEEDS), BASELINES)


def _by_hand(run: Run, wanted: str, script: str) -> str:
    """Return what to train with a script, whose own arguments only its author knows; and how it was started."""
    m = run.metrics
    return f"train {wanted} with the script that trained seed={m.seed}, mode='{m.mode}', world_size={m.world_size}: {script}"


def propose(folder: Path | None) -> str:
    """Return the command that proposes baselines for a folder of them (None: the usual one)."""
    return f"python -m bench baseline propose {BASELINES} --mode solo{_for(folder)}"


def accept(folder: Path | None) -> str:
    """Return the command that accepts what was proposed into a folder of baselines (None: the usual one)."""
    return f"python -m bench baseline accept{_for(folder)}"


def baseline(cell: Cell, folder: Path | None, shown: Cell | None = None) -> str:
    """Return the commands that train, propose and accept the solo baseline for a cell into a folder. `shown`: see
    `reference`."""
    last = ";" if script_of(cell.runs[0]) else " &&"  # one run of a script has one seed
    return f"{reference(cell, shown)}{last} {propose(folder)} && {accept(folder)}"


def _for(folder: Path | None) -> str:
    usual = paths.BASELINES.resolve(), paths.OWN_BASELINES.resolve()
    if folder is None or folder.is_file() or folder.resolve() in usual:
        return ""
    return f" --baseline {shlex.quote(str(folder))}"


def rerun(cell: Cell) -> str:
    """Return the command that trains all seeds of a cell again, in the same place."""
    if script_of(cell.runs[0]) is not None:
        return command(cell.runs)
    return f"{_line(cell.runs[0], [run.metrics.seed for run in cell.runs], _tree(cell))} force=true"


def _listed(seeds: Iterable[int]) -> str:
    return ",".join(map(str, seeds))


def _line(run: Run, seeds: Iterable[int], output: Path) -> str:
    runs = [replace(run, metrics=run.metrics.model_copy(update={"seed": seed})) for seed in seeds]
    return command(runs) + ("" if output == USUAL else f" {setting('output', str(output))}")


def _tree(cell: Cell) -> Path:
    """Return the tree that a cell's runs lie in; the default one if they were moved."""
    m, mode = cell.about, cell.runs[0].path.parent
    return mode.parent.parent if (mode.parent.name, mode.name) == (m.model, m.mode) else USUAL


def _solo(run: Run) -> Run:
    """Return the same training as a run of one process, on a device without emulated slowness and faults."""
    plain: dict[str, Any] = {"mode": "solo", "engine": "solo", "policy": None, "backend": None, "world_size": 1}
    metrics = run.metrics.model_copy(update={**plain, "emulated_speeds": [], "scripted_faults": []})
    alone = run.metrics.engine == "solo"
    trained = ("train", "data", "loader", "code")
    kept = run.config if alone else {key: run.config[key] for key in trained if key in run.config}
    cluster = run.config.get("cluster", {})
    config = kept | {"cluster": {"device": cluster["device"]} if "device" in cluster else {}}
    if not alone and "train" in kept:
        train = config["train"] = {key: value for key, value in kept["train"].items() if key != "lr_scale_ratio"}
        if "steps" in train:  # the same number of samples
            train["steps"] *= run.metrics.world_size
    return replace(run, metrics=metrics, config=config)
