"""Turns a user's settings into a run: `Config` -> `RunSpec` and `Job`. Pure.

Knows neither Hydra nor torch, touches no file and no clock. Relative paths start at the current folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import models
from bench.base import canonical
from bench.config.config import Config, DataConfig
from bench.config.config_checks import (
    Machine,
    check_cluster,
    check_engine,
    check_paths,
    check_profile,
    checkpoint_of,
    links_of,
    recipe_of,
    script_of,
    speeds_of,
    world_size_of,
)
from bench.config.run_warnings import warnings_of
from bench.config.spec import Measure, RunSpec
from bench.config.user_parts import TASK, saved
from bench.models.data import title
from bench.models.setup import Recipe, Setup
from ddp.backends import BACKENDS, preload_of
from ddp.core.network.links import parse
from ddp.core.policies import Policy
from ddp.core.settings.averaging import Averaging
from ddp.core.settings.loader import Loading
from ddp.core.settings.steps import NAMES as STEP
from ddp.engine import ENGINES
from ddp.engine.modes import backend_of, engine_of
from ddp.engine.step_checks import check_step
from ddp.replica.task import Job, Task
from ddp.settings import check_policy, known, make_policy, restarts
from ddp.user_code import CodeDigest

if TYPE_CHECKING:
    from ddp.trainer.task import PackedTask


@dataclass(frozen=True)
class LaunchPlan:
    """One run, ready to launch."""

    spec: RunSpec
    job: Job
    """If the job names no `scratch`, the launch makes a folder for it."""

    def audit_task(self, folder: Path) -> Callable[[], Task]:
        """Return the function that makes the task in the audit's process. `folder`: for the task's files while the
        audit runs."""
        return self.job.task


@dataclass(frozen=True)
class RunPlan(LaunchPlan):
    """A run of a model in the registry."""

    recipe: Recipe
    """The recipe with the user's overrides."""


@dataclass(frozen=True)
class ScriptPlan(LaunchPlan):
    """A run of a user's script."""

    graph: dict[str, Any] | None = None
    """Graph of the model; None: it could not be traced."""
    packed: PackedTask | None = None
    """The task in a form that can be sent to another process; None: the job's task is in that form."""

    def audit_task(self, folder: Path) -> Callable[[], Task]:
        """Return the function that makes the task, unpacked in `folder`."""
        return self.job.task if self.packed is None else self.packed.deliver(folder)


def plan(
    config: Config,
    setup: Setup,
    data_names: Collection[str],
    machine: Machine,
    settings: Collection[str] = (),
    code: tuple[CodeDigest, ...] = (),
    resized: Sequence[dict[str, int]] = (),
) -> RunPlan:
    """Resolve and check all settings; return the plan. Raise ValueError for settings that cannot run.

    `settings`: the keys that the user set; `code`: digests of the user's own parts (`bench.config.user_parts`); `resized`:
    the numbers of ranks that the run had before (`bench.runner.resized`)."""
    check_paths(config)
    engine = known("engine", config.engine.name, ENGINES)
    known("backend", config.backend.name, BACKENDS)
    mode = config.mode
    policy = make_policy(config.policy["name"], {key: value for key, value in config.policy.items() if key != "name"})
    world_size = world_size_of(config.world_size, engine)
    recipe = recipe_of(config, setup, data_names, world_size)
    check_engine(config)
    check_step(config.train.step, mode, world_size, "train.")
    check_cluster(config, world_size, machine)
    check_profile(config.profile, mode, world_size, machine)
    speeds = speeds_of(config.cluster.speeds, world_size, config.cluster.step_s)
    faults = script_of(config.cluster, world_size)
    links, scripted = links_of(config, world_size), [str(fault) for fault in faults]
    config = replace(config, cluster=replace(config.cluster, speeds=speeds, faults=scripted, links=links))
    config = replace(config, checkpoint=checkpoint_of(config.checkpoint, mode, settings))
    if not 0 <= config.seed < 2**31:
        raise ValueError(f"seed={config.seed} must be 0 or more, and below 2**31")
    check_policy(policy, world_size)
    resolved = (
        resolve(config, recipe, policy, world_size) | saved(code) | ({"resized": list(resized)} if resized else {})
    )
    measure = Measure(setup.metric, setup.higher_is_better, recipe.target)
    spec = spec_of(config, recipe, resolved, _training_of(recipe), measure, machine)
    return RunPlan(spec, _job(spec, policy, config, recipe, code), recipe)


def spec_of(
    config: Config,
    recipe: Recipe,
    resolved: dict[str, Any],
    training: dict[str, Any],
    measure: Measure,
    machine: Machine,
) -> RunSpec:
    """Return the `RunSpec` of a checked configuration. `resolved`: the result of `resolve`; `training`: see
    `cell_hash`."""
    mode, world_size = config.mode, resolved["world_size"]
    cell = cell_hash(resolved, training)
    return RunSpec(
        model=config.model.name,
        depth=recipe.depth,
        data=title(recipe.data, recipe.data_options),
        recipe=config.recipe,
        mode=mode.name,
        engine=mode.engine,
        policy=mode.policy,
        backend=mode.backend,
        world_size=world_size,
        seed=config.seed,
        epochs=recipe.epochs,
        batch_size=recipe.batch_size * config.train.step.accumulate,
        lr=recipe.lr,
        lr_scale=1.0 + recipe.lr_scale_ratio * (world_size - 1),
        speeds=tuple(config.cluster.speeds),
        timing=config.timing,
        faults=script_of(config.cluster, world_size),
        metric=measure.metric,
        higher_is_better=measure.higher_is_better,
        target=measure.target,
        output=config.output,
        run_id=f"w{world_size}-s{config.seed}-{cell[:8]}",
        config_hash=cell,
        config=resolved,
        warnings=warnings_of(config, world_size, machine),
        source="virtual" if engine_of(mode.engine).virtual and world_size > 1 else "",  # one rank trains in real time
    )


def resolve(config: Config, recipe: Recipe, policy: Policy, world_size: int) -> dict[str, Any]:
    """Return the configuration with every default filled in; settings without effect are null.

    Its key `training` has the recipe's own settings, by which baselines identify the recipe."""
    mode, backend = config.mode, backend_of(config.mode)
    # Rarely used settings are left out if not given: older hashes and run folders lack them.
    few = {name: getattr(config.train, name) for name in ("lr_scale_ratio", "max_grad_norm")}
    rare = {name: float(value) for name, value in few.items() if value is not None} | config.train.step.given
    rare |= {} if config.train.steps is None else {"steps": config.train.steps}
    # A relative folder becomes absolute, so that later commands find it from any folder.
    data_dir = config.data.dir if config.data.dir == DataConfig.dir else os.path.abspath(config.data.dir)
    return {
        "model": config.model.name,
        "engine": mode.engine,
        "policy": {"name": mode.policy} | vars(policy) if mode.policy is not None else None,
        "backend": mode.backend,
        "averaging": vars(config.averaging.resolved()) if backend is not None and backend.averages else None,
        "world_size": world_size,
        "seed": config.seed,
        "recipe": config.recipe,
        "train": {"epochs": recipe.epochs, "batch_size": recipe.batch_size, "lr": recipe.lr} | rare,
        "training": {"schedule": recipe.schedule, "augment": recipe.augment},
        "data": {"name": recipe.data, "dir": data_dir} | recipe.data_options.given,
        "loader": vars(config.loader),
        "cluster": {key: value for key, value in asdict(config.cluster).items() if (key, value) != ("links", None)},
        "checkpoint": asdict(config.checkpoint),
        "audit": config.audit,
        **({"depth": recipe.depth} if recipe.depth is not None else {}),
        **({"profile": asdict(config.profile)} if config.profile.steps else {}),
        **({} if config.timing else {"timing": False}),
        **({"virtual": vars(config.virtual)} if engine_of(mode.engine).virtual else {}),
    }


def _training_of(recipe: Recipe) -> dict[str, Any]:
    """Return the settings of a recipe that influence the result."""
    apart = ("target", "data_options", "depth", "augment")
    training = {key: value for key, value in asdict(recipe).items() if key not in apart}
    if recipe.augment:
        training["augment"] = recipe.augment
    if recipe.data_options.given:
        training["data_options"] = recipe.data_options.given
    return training


def cell_hash(resolved: dict[str, Any], training: dict[str, Any]) -> str:
    """Return the sha256 of the canonical JSON of all settings that influence the result or speed of a run, except the
    seed.

    `training`: the settings of what is trained and for how long; they replace those in `resolved`."""
    without = ("seed", "data", "train", "cluster", "checkpoint", "audit", "script", "timing")
    cell = {key: value for key, value in resolved.items() if key not in without}
    backend = BACKENDS.get(cell["backend"])
    if backend is not None and not backend.averages:  # cells keep their names: such a backend was an engine once
        cell |= {"engine": cell["backend"], "policy": None, "backend": None}
    if cell["averaging"] in (None, vars(Averaging())):  # cells of plain averaging keep the names that they always had
        del cell["averaging"]
    if cell["loader"] == vars(Loading()):
        del cell["loader"]
    if "code" in resolved:  # wherever it lies
        cell["code"] = {kind: part["sha256"] for kind, part in resolved["code"].items()}
    cell["training"] = dict(training)
    if "max_grad_norm" in resolved["train"]:
        cell["training"]["max_grad_norm"] = resolved["train"]["max_grad_norm"]
    cell["training"] |= {key: resolved["train"][key] for key in ("steps", *STEP) if key in resolved["train"]}
    cell["cluster"] = {
        key: value
        for key, value in resolved["cluster"].items()
        # Faults count where there are some; a rank that is never silent meets no deadline; where rank 0 listens decides
        # nothing.
        if key not in ("deadline_s", "bind") and (key, value) not in UNSAID
    }
    return canonical.digest(cell)


UNSAID: tuple[tuple[str, Any], ...] = (
    ("faults", []),
    ("step_s", 0.0),
    ("tolerate_loss", True),
    ("transport", "auto"),
    ("restart", "never"),
    ("compare", 0),
    ("absent", 0),
    ("spares", 0),
)
"""Settings of a cluster with the value at which they are left out of the hash, as older cells lack them."""


def _job(spec: RunSpec, policy: Policy, config: Config, recipe: Recipe, code: tuple[CodeDigest, ...]) -> Job:
    own = tuple(each for each in code if each.kind in TASK)
    task = partial(models.make_own_task if own else models.make_task, spec.model, recipe, config.data.dir)
    cluster, train = (spec.config[group] for group in ("cluster", "train"))
    return Job(
        task=partial(task, own) if own else task,
        epochs=spec.epochs,
        batch_size=spec.batch_size,
        seed=spec.seed,
        world_size=spec.world_size,
        policy=policy,
        backend=config.backend.name,
        scratch=Path(),  # the launcher makes it
        loading=config.loader,
        steps=config.train.steps,
        step=config.train.step,
        averaging=config.averaging if spec.config["averaging"] else Averaging(),  # as whoever goes on reads it
        checkpoints=config.checkpoint,
        device=cluster["device"],
        transport=cluster["transport"],
        speeds=spec.speeds,
        step_s=cluster.get("step_s", 0.0),
        links=parse(cluster.get("links") or (), seed=spec.seed),
        virtual=config.virtual,
        lr_scale=spec.lr_scale,
        max_grad_norm=train.get("max_grad_norm"),
        deadline_s=cluster["deadline_s"],
        tolerate_loss=cluster["tolerate_loss"],
        restarts=restarts(cluster.get("restart", "never")),
        absent=cluster.get("absent", 0),
        spares=cluster.get("spares", 0),
        compare=cluster.get("compare", 0),
        faults=spec.faults,
        profile_steps=config.profile.steps,
        audit=spec.run_id if spec.config["audit"] else "",
        # Ours first: a user's folder may have our names.
        preload=("bench.models", models.MODELS[spec.model], *preload_of(spec.backend)),
    )
