"""The command that runs a cell again, from its run folder alone. Imports no torch.

It names every setting of the cell (`bench.config.plan.cell_hash`) that is not the default, and numbers to their last
digit, so that it gives the same cell. The folder's content is not trusted: every word is quoted for the shell.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.config.config import ClusterConfig, DataConfig
from bench.config.overrides import setting
from bench.config.user_parts import named_by
from bench.results.runfolder import Run, group_of
from bench.results.training_settings import micro_batches
from ddp.core.policies import POLICIES
from ddp.core.settings.averaging import Averaging
from ddp.core.settings.loader import Loading
from ddp.core.settings.steps import NAMES as STEP
from ddp.core.settings.virtual_time import VirtualTime
from ddp.engine.modes import engine_of, preset_of

_TIMES = re.compile(r"0|[1-9]\d{0,8}", re.ASCII)
"""Numbers that a text keeps to their last character."""


def auditing(folder: Path) -> str:
    """Return the shell command that audits a run."""
    return f"python -m bench audit {shlex.quote(str(folder))}"


def command(runs: Sequence[Run]) -> str:
    """Return a shell command for the runs of one cell, with all their seeds."""
    return " && ".join(commands(runs))


def commands(runs: Sequence[Run]) -> list[str]:
    """Return the shell commands for the runs of one cell: one with all their seeds, or one for each call of a script."""
    scripts = dict.fromkeys(script for run in runs if (script := script_of(run)) is not None)
    return list(scripts) or [_bench(runs)]


def _bench(runs: Sequence[Run]) -> str:
    """Return the command of the bench, which names settings that the mode does not imply."""
    run, seeds = runs[0], sorted({run.metrics.seed for run in runs})
    m = run.metrics
    words = ["python -m bench"] + ["-m"] * (len(seeds) > 1)
    words += [
        setting("model", named_by(run.config, "model", m.model)),
        *([setting("model.depth", m.depth)] if m.depth else []),
        setting("mode", m.mode),
    ]
    words += [] if engine_of(m.engine).one_rank else [setting("world_size", m.world_size)]
    words += [setting("recipe", m.recipe), *_data(run), setting("train.epochs", m.epochs_planned)]
    train = group_of(run.config, "train")
    words += [setting("train.batch_size", m.batch_size // micro_batches(run.config)), setting("train.lr", m.lr)]
    words += [
        setting(f"train.{name}", train[name])
        for name in ("lr_scale_ratio", "max_grad_norm", "steps", *STEP)
        if name in train
    ]
    words += _cluster(run)
    words += [setting("profile.steps", steps) for steps in [group_of(run.config, "profile").get("steps")] if steps]
    usual = _policy(group_of(run.config, "policy").get("name")) | {"averaging": Averaging(), "loader": Loading()}
    usual |= {"virtual": VirtualTime()}
    preset = {"policy": preset_of(m.mode)}
    for group, default in usual.items():
        words += _changed(group, group_of(run.config, group), asdict(default) | dict(preset.get(group, {})))
    return " ".join([*words, f"seed={','.join(map(str, seeds))}"])


def script_of(run: Run) -> str | None:
    """Return the shell command of the script that made a run; None if no script did."""
    script = group_of(run.config, "script")
    if not script:
        return None
    if not script.get("path"):
        return "run the same code again: it was an interactive session, of which no script is kept"
    try:
        words = ["python", *script_words(script)]
    except ValueError as error:
        return str(error)
    paths = os.pathsep.join(map(str, script.get("pythonpath") or ()))
    variable = f"PYTHONPATH={shlex.quote(paths)} " if paths else ""
    return f"cd {shlex.quote(str(script.get('folder')))} && {variable}{shlex.join(words)}"


def script_words(script: dict[str, Any]) -> list[str]:
    """Return the arguments of Python that run a script again, through torchrun if a launcher started several processes
    of it. Raises ValueError if it ran on several hosts."""
    what = ["-m", str(script["module"])] if script.get("module") else [str(script["path"])]
    arguments, processes, hosts = (script.get(name) for name in ("arguments", "processes", "hosts"))
    if isinstance(hosts, int) and hosts > 1:
        raise ValueError(f"run {what[-1]} again by its launcher: it started {processes} processes on {hosts} hosts")
    if isinstance(processes, int) and processes > 1:
        what = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", *what]
    return [*what, *(map(str, arguments) if isinstance(arguments, list) else ())]


def _data(run: Run) -> list[str]:
    """Return the data set and its settings, with its folder unless that is the default."""
    named = {"name": run.metrics.data} | group_of(run.config, "data")
    named["name"] = named_by(run.config, "data", named["name"])
    return [setting(f"data.{key}", value) for key, value in named.items() if (key, value) != ("dir", DataConfig.dir)]


def _cluster(run: Run) -> list[str]:
    """Return the settings of devices and links; with a fault script also its deadline, and whether the run tolerates
    losses."""
    m, cluster, usual = run.metrics, group_of(run.config, "cluster"), asdict(ClusterConfig())
    words = [setting("cluster.speeds", m.emulated_speeds)] if m.emulated_speeds else []
    if m.scripted_faults:
        words.append(setting("cluster.faults", m.scripted_faults))
        words.append(setting("cluster.deadline_s", cluster.get("deadline_s", 60.0)))
    apart = ("speeds", "faults", "deadline_s", "bind")
    known = {key: cluster[key] for key in usual if key in cluster and key not in apart}
    if _TIMES.fullmatch(str(known.get("restart"))):
        known["restart"] = int(known["restart"])
    return words + _changed("cluster", known, usual)


def _policy(name: Any) -> dict[str, Any]:
    return {"policy": POLICIES[name]()} if isinstance(name, str) and name in POLICIES else {}


def _changed(group: str, settings: dict[str, Any], usual: dict[str, Any]) -> list[str]:
    """Return the settings that differ from the default."""
    plain = json.loads(json.dumps(usual)) | {"name": settings.get("name")}
    return [setting(f"{group}.{key}", value) for key, value in settings.items() if value != plain.get(key)]
