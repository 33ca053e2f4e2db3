"""The command that runs a cell again, from its run folder alone. Imports no torch."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from bench.runfolder import Run
from ddp.core.averaging import Averaging
from ddp.core.policies import POLICIES


def command(runs: Sequence[Run]) -> str:
    """A shell line for the runs of one cell, all their seeds. Settings of the policy are named where not the default."""
    run = runs[0]
    m, seeds = run.metrics, sorted({run.metrics.seed for run in runs})
    words = ["python -m bench"] + ["-m"] * (len(seeds) > 1)
    words += [f"model={m.model}", *([f"model.depth={m.depth}"] if m.depth else []), f"mode={m.mode}"]
    words += [] if m.engine == "solo" else [f"world_size={m.world_size}"]
    words += [f"recipe={m.recipe}", *_data(run), f"train.epochs={m.epochs_planned}"]
    words += [f"train.batch_size={m.batch_size}", f"train.lr={m.lr:g}"]
    train = run.config.get("train", {})
    words += [f"train.{name}={train[name]:g}" for name in ("lr_scale_ratio", "max_grad_norm") if name in train]
    if m.emulated_speeds:
        words.append(f"'cluster.speeds=[{','.join(f'{speed:g}' for speed in m.emulated_speeds)}]'")
    words += _faults(run)
    words += [f"profile.steps={run.config['profile']['steps']}"] if run.config.get("profile") else []
    words += _policy(run.config.get("policy"))
    words += _changed("averaging", run.config.get("averaging"), Averaging())
    return " ".join([*words, f"seed={','.join(map(str, seeds))}"])


def _data(run: Run) -> list[str]:
    """The data set and its settings; where it lies is the machine's."""
    said = {"name": run.metrics.data} | run.config.get("data", {})
    return [shlex.quote(f"data.{key}={_spelt(value)}") for key, value in said.items() if key != "dir"]


def _spelt(value: Any) -> str:
    """Hydra has meanings for most signs: what is no plain word is quoted for it, too."""
    plain = not isinstance(value, str) or re.fullmatch(r"[\w./-]+", value)
    return _word(value) if plain else "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _faults(run: Run) -> list[str]:
    """The fault script, with the deadline that it was met with; and whether the run was to go on."""
    cluster, script = run.config.get("cluster", {}), run.metrics.scripted_faults
    words = [f"'cluster.faults=[{','.join(script)}]'", f"cluster.deadline_s={cluster.get('deadline_s', 60.0):g}"]
    return (words if script else []) + ["cluster.tolerate_loss=false"] * (cluster.get("tolerate_loss") is False)


def _policy(settings: Any) -> list[str]:
    if not isinstance(settings, dict) or settings.get("name") not in POLICIES:
        return []
    said = {key: value for key, value in settings.items() if key != "name"}
    return _changed("policy", said, POLICIES[settings["name"]]())


def _changed(group: str, settings: Any, default: Any) -> list[str]:
    """The settings that differ from a frozen dataclass of defaults."""
    if not isinstance(settings, dict):
        return []
    usual = json.loads(json.dumps(asdict(default)))
    changed = {key: value for key, value in settings.items() if value != usual.get(key)}
    return [f"{group}.{key}={_word(value)}" for key, value in changed.items()]


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
