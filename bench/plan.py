"""From what the user said to what is run: `Config` -> `RunSpec` and `Job`. Pure.

Every check of user input that needs more than a type is here, as a ValueError that names the remedy. Knows neither Hydra
nor torch, touches no file and no clock.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import models
from bench.config import Config
from bench.spec import RunSpec
from ddp.core.averaging import Averaging
from ddp.core.checkpointing import Checkpointing
from ddp.core.policies import Policy
from ddp.core.world import World
from ddp.runtime.backends import BACKENDS
from ddp.runtime.engines import ENGINES, NO_CHECKPOINTS, PEERS
from ddp.runtime.task import Job
from ddp.settings import check_transport, known, make_policy, script
from ddp.suggest import unknown
from models.setup import Recipe, Setup

SOLO = "solo"
"""The engine that trains on one rank only."""
PAIRED = "elche"
"""The engine that is made of a policy and a backend; the others are modes by themselves."""
MAX_WORLD = 64
DEVICES = ("auto", "cpu", "cuda")
DAY_S = 86_400


@dataclass(frozen=True)
class Machine:
    """What the plan must know of the machine."""

    cores: int
    gpus: int = 0


@dataclass(frozen=True)
class RunPlan:
    """One run, ready to launch. `job.scratch` is still to be named."""

    spec: RunSpec
    job: Job
    recipe: Recipe
    """With the user's overrides."""


def mode_name(engine: str, policy: str, backend: str) -> str:
    """What results call this way of training: `nccl_cadence` for the pair, else the engine's own name."""
    return f"{backend}_{policy}" if engine == PAIRED else engine


def plan(config: Config, setup: Setup, data_names: Collection[str], machine: Machine) -> RunPlan:
    """Resolve and check everything. Raises ValueError for what cannot be run."""
    engine = known("engine", config.engine.name, ENGINES)
    backend = known("backend", config.backend.name, BACKENDS)
    policy = make_policy(config.policy["name"], {key: value for key, value in config.policy.items() if key != "name"})
    recipe = _recipe(config, setup, data_names)
    world_size = _world_size(config.world_size, engine)
    _check_cluster(config, world_size, machine)
    speeds, faults = _speeds(config.cluster.speeds, world_size), script(config.cluster.faults, world_size)
    config = replace(config, cluster=replace(config.cluster, speeds=speeds, faults=[str(fault) for fault in faults]))
    config = replace(config, checkpoint=_checkpoint(config.checkpoint, engine))
    if not 0 <= config.seed < 2**31:
        raise ValueError(f"seed={config.seed} must be 0 or more, and below 2**31")
    if world_size > 1:
        # Settings that have an entry for each rank are refused here, not in the run.
        policy.init(World(world_size, 1, 1, 1, blocking=True, in_step=False))
    resolved = _resolve(config, recipe, policy, world_size)
    lr_scale = 1.0 + recipe.lr_scale_ratio * (world_size - 1)
    cell = cell_hash(resolved, recipe)
    spec = RunSpec(
        model=config.model.name,
        data=recipe.data,
        recipe=config.recipe,
        mode=mode_name(engine, config.policy["name"], backend),
        engine=engine,
        policy=config.policy["name"] if engine == PAIRED else None,
        backend=backend if engine == PAIRED else None,
        world_size=world_size,
        seed=config.seed,
        epochs=recipe.epochs,
        batch_size=recipe.batch_size,
        lr=recipe.lr,
        lr_scale=lr_scale,
        speeds=tuple(config.cluster.speeds),
        faults=faults,
        metric=setup.metric,
        higher_is_better=setup.higher_is_better,
        target=recipe.target,
        output=config.output,
        run_id=f"w{world_size}-s{config.seed}-{cell[:8]}",
        config_hash=cell,
        config=resolved,
        warnings=_warnings(config, world_size, machine),
    )
    return RunPlan(spec, _job(spec, policy, config, recipe), recipe)


def _resolve(config: Config, recipe: Recipe, policy: Policy, world_size: int) -> dict[str, Any]:
    """The configuration as the user could have said it, with nothing left open; where a choice has no effect, null."""
    paired = config.engine.name == PAIRED
    return {
        "model": config.model.name,
        "engine": config.engine.name,
        "policy": {"name": config.policy["name"]} | vars(policy) if paired else None,
        "backend": config.backend.name if paired else None,
        "averaging": vars(config.averaging.resolved()) if paired else None,
        "world_size": world_size,
        "seed": config.seed,
        "recipe": config.recipe,
        "train": {"epochs": recipe.epochs, "batch_size": recipe.batch_size, "lr": recipe.lr} | _beyond(config),
        "data": {"name": recipe.data, "dir": config.data.dir},
        "cluster": asdict(config.cluster),
        "checkpoint": asdict(config.checkpoint),
    }


def _beyond(config: Config) -> dict[str, float]:
    """What was said of the training that few say; left out where it was not."""
    said = {name: getattr(config.train, name) for name in ("lr_scale_ratio", "max_grad_norm")}
    return {name: float(value) for name, value in said.items() if value is not None}


def cell_hash(resolved: dict[str, Any], recipe: Recipe) -> str:
    """sha256 over the canonical JSON of all that influences the result or the speed of a run, but for its seed."""
    cell = {
        key: value for key, value in resolved.items() if key not in ("seed", "data", "train", "cluster", "checkpoint")
    }
    if cell["averaging"] in (None, vars(Averaging())):  # cells of plain averaging keep the names that they always had
        del cell["averaging"]
    cell["training"] = {key: value for key, value in asdict(recipe).items() if key != "target"}
    if "max_grad_norm" in resolved["train"]:
        cell["training"]["max_grad_norm"] = resolved["train"]["max_grad_norm"]
    cell["cluster"] = {
        key: value
        for key, value in resolved["cluster"].items()
        # What is said of faults counts where it is said; a rank that is never silent meets no deadline.
        if key != "deadline_s" and (key, value) not in (("faults", []), ("tolerate_loss", True))
    }
    return hashlib.sha256(json.dumps(cell, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _job(spec: RunSpec, policy: Policy, config: Config, recipe: Recipe) -> Job:
    cluster, data, train = (spec.config[group] for group in ("cluster", "data", "train"))
    return Job(
        task=partial(models.make_task, spec.model, recipe, data["dir"]),
        epochs=spec.epochs,
        batch_size=spec.batch_size,
        seed=spec.seed,
        world_size=spec.world_size,
        policy=policy,
        backend=config.backend.name,
        scratch=Path(),  # the launcher makes it
        averaging=config.averaging,
        checkpoints=config.checkpoint,
        device=cluster["device"],
        transport=cluster["transport"],
        speeds=spec.speeds,
        lr_scale=spec.lr_scale,
        max_grad_norm=train.get("max_grad_norm"),
        deadline_s=cluster["deadline_s"],
        tolerate_loss=cluster["tolerate_loss"],
        faults=spec.faults,
        preload=(models.MODELS[spec.model],),
    )


def _recipe(config: Config, setup: Setup, data_names: Collection[str]) -> Recipe:
    if config.recipe not in setup.recipes:
        raise ValueError(unknown(f"recipe of model {config.model.name!r}", config.recipe, setup.recipes))
    given = {key: value for key, value in vars(config.train).items() if value is not None and key != "max_grad_norm"}
    recipe = replace(setup.recipes[config.recipe], **given)
    # 1 and 1.0 are one cell.
    recipe = replace(recipe, lr=float(recipe.lr), lr_scale_ratio=float(recipe.lr_scale_ratio))
    if config.data.name is not None:
        recipe = replace(recipe, data=known("data set", config.data.name, data_names))
    if recipe.epochs < 1:
        raise ValueError(f"train.epochs={recipe.epochs} must be 1 or more")
    if recipe.batch_size < 1:
        raise ValueError(f"train.batch_size={recipe.batch_size} must be 1 or more")
    if not (math.isfinite(recipe.lr) and recipe.lr > 0):
        raise ValueError(f"train.lr={recipe.lr} must be above 0")
    if not (math.isfinite(recipe.lr_scale_ratio) and recipe.lr_scale_ratio >= 0):
        raise ValueError(
            f"train.lr_scale_ratio={recipe.lr_scale_ratio} must be 0 (the same rate for any world_size) or more"
        )
    limit = config.train.max_grad_norm
    if limit is not None and not (math.isfinite(limit) and limit > 0):
        raise ValueError(f"train.max_grad_norm={limit} must be above 0, or null for no limit")
    return recipe


def _world_size(asked: int | None, engine: str) -> int:
    if asked is None:
        return 1 if engine == SOLO else 2
    if not 1 <= asked <= MAX_WORLD:
        raise ValueError(f"world_size={asked} is not between 1 and {MAX_WORLD}")
    if engine == SOLO and asked != 1:
        raise ValueError(f"world_size={asked} with mode=solo, which has one rank: leave it out, or choose another mode")
    return asked


def _check_cluster(config: Config, world_size: int, machine: Machine) -> None:
    cluster = config.cluster
    if cluster.device not in DEVICES:
        raise ValueError(unknown("cluster.device", cluster.device, DEVICES))
    if cluster.device == "cuda" and not machine.gpus:
        raise ValueError(
            "cluster.device=cuda, but there is no GPU that torch can use; leave it out to train on the CPU"
        )
    own_gpus = cluster.device != "cpu" and machine.gpus >= world_size
    check_transport(cluster.transport, own_gpus, "cluster.transport")
    if config.engine.name in PEERS and cluster.transport == "memory":
        raise ValueError(
            f"cluster.transport=memory with mode={config.engine.name}, which has PyTorch's own; leave it out"
        )
    if not 0 < cluster.deadline_s <= DAY_S:
        raise ValueError(f"cluster.deadline_s={cluster.deadline_s} must be above 0 and at most {DAY_S}, a day")
    if world_size > 1 and cluster.speeds and len(cluster.speeds) != world_size:
        count = len(cluster.speeds)
        raise ValueError(
            f"cluster.speeds has {count} values for {world_size} ranks: give one each, or world_size={count}"
        )
    for speed in cluster.speeds:
        if not 0.01 <= speed <= 1:
            raise ValueError(f"cluster.speeds: {speed} is not in [0.01, 1]; 0.5 makes a rank half as fast")


def _checkpoint(said: Checkpointing, engine: str) -> Checkpointing:
    """An engine that makes none is silent about the default, and refuses what was asked for."""
    if engine not in NO_CHECKPOINTS:
        return said
    if said.every and said != Checkpointing():
        raise ValueError(f"mode={engine} makes no checkpoints: leave out checkpoint.*, or choose another mode")
    return Checkpointing(every=0)


def _speeds(speeds: list[float], world_size: int) -> list[float]:
    """One rank is the first of the devices described; devices that are all as fast as they can be are not emulated."""
    speeds = speeds[:world_size]
    return speeds if any(speed != 1 for speed in speeds) else []


def _warnings(config: Config, world_size: int, machine: Machine) -> tuple[str, ...]:
    said: list[str] = []
    on_gpus = config.cluster.device != "cpu" and machine.gpus >= world_size
    if world_size > machine.cores and not on_gpus:
        said.append(
            f"oversubscribed: {world_size} ranks share {machine.cores} cores, so speeds say nothing about scaling"
        )
    if config.cluster.speeds:
        speeds = "/".join(f"{speed:g}" for speed in config.cluster.speeds)
        said.append(f"emulated devices: ranks are slowed down to {speeds} of their speed")
    if config.cluster.faults:
        said.append(f"faults on purpose: {', '.join(config.cluster.faults)} (rank@its step:kind)")
    return tuple(said)
