"""Checks and completes a user's settings: an invalid setting is a ValueError that names the remedy. Pure.

Owns the checks of user input that need more than its type, such as the registries. Knows neither Hydra nor torch.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from bench.config.config import ClusterConfig, Config, DataConfig, ModelConfig, ProfileConfig
from bench.config.link_checks import links_for
from bench.config.virtual_checks import check_virtual
from bench.models.data import DATA, DataOptions, check
from bench.models.setup import Recipe, Setup
from ddp.backends import check_link_faults, check_sharing
from ddp.core.network.links import FORM
from ddp.core.policies import meets_every_step
from ddp.core.settings.checkpoints import Checkpointing
from ddp.core.settings.faults import Fault
from ddp.core.settings.steps import NAMES as STEP
from ddp.engine.modes import Mode, backend_of, engine_of
from ddp.launcher.interfaces import check_bind
from ddp.replica.task import Job
from ddp.settings import (
    DAY_S,
    DEVICES,
    HIGHEST_RATE,
    MAX_VIRTUAL,
    MAX_WORLD,
    MOST_EPOCHS,
    MOST_SAMPLES,
    check_reach,
    check_transport,
    emulated,
    known,
    norm_limit,
    number,
    path,
    restarts,
    run_steps,
    script,
    whole,
)
from ddp.suggest import unknown

MAX_PROFILED = 100
LEAST_STEP_S = 1e-4
"""Least time of an emulated step, seconds: shorter sleeps are not."""
LEAST_RATE = 1e-12
"""Least learning rate; a smaller one trains nothing."""


@dataclass(frozen=True)
class Machine:
    """The cores, GPUs and hosts that a plan is checked against."""

    cores: int
    gpus: int = 0
    hosts: int = 1
    """Number of machines like this one."""

    def ranks(self, world_size: int) -> int:
        """Return the number of ranks on one host, rounded up."""
        return -(-world_size // self.hosts)


def recipe_of(config: Config, setup: Setup, data_names: Collection[str], world_size: int) -> Recipe:
    """Return the recipe with the user's settings in place of its own. Raise ValueError."""
    if config.recipe not in setup.recipes:
        raise ValueError(unknown(f"recipe of model {config.model.name!r}", config.recipe, setup.recipes))
    train = replace(config.train, batch_size=_batch_size(config, world_size))
    if train.steps is not None and train.epochs is None:
        train = replace(train, epochs=1)
    beyond = ("max_grad_norm", "global_batch_size", "steps", *STEP)
    given = {key: value for key, value in vars(train).items() if value is not None and key not in beyond}
    recipe = replace(setup.recipes[config.recipe], **given)
    # lr=1 and lr=1.0 must hash to the same cell.
    recipe = replace(recipe, lr=float(recipe.lr), lr_scale_ratio=float(recipe.lr_scale_ratio))
    recipe = _data_of(config.data, recipe, data_names)
    recipe = replace(recipe, depth=_depth_of(config.model, setup, recipe.depth))
    run_steps("train.steps", train.steps, whole("train.epochs", recipe.epochs, 1, MOST_EPOCHS))
    whole("train.batch_size", recipe.batch_size, 1, MOST_SAMPLES)
    if recipe.batch_size * train.step.accumulate > MOST_SAMPLES:
        raise ValueError(
            f"train.accumulate={train.step.accumulate} of batches of {recipe.batch_size} is too many samples"
        )
    number("train.lr", recipe.lr, LEAST_RATE, HIGHEST_RATE)
    ratio, remedy = recipe.lr_scale_ratio, "0: the same rate for any world_size"
    number("train.lr_scale_ratio", ratio, 0.0, HIGHEST_RATE, remedy=remedy)
    norm_limit("train.max_grad_norm", config.train.max_grad_norm)
    return recipe


def _depth_of(model: ModelConfig, setup: Setup, own: int | None) -> int | None:
    """Return the depth if the user or the recipe (`own`) chose another than the model's default, else None. The model
    itself checks which depths it supports."""
    depth = own if model.depth is None else model.depth
    if depth is not None and setup.depth is None:
        raise ValueError(f"model.depth={depth}: model {model.name} is of one depth; leave it out")
    return None if depth == setup.depth and own in (None, depth) else depth


def _data_of(data: DataConfig, recipe: Recipe, names: Collection[str]) -> Recipe:
    """Return the recipe with the user's data set; another than its own keeps the data settings that it inherits."""
    name = known("data set", recipe.data if data.name is None else data.name, names)
    own = {key: value for key, value in vars(data).items() if key not in ("name", "dir")}
    options = DataOptions(**own | {"shape": None if data.shape is None else tuple(data.shape)})
    kept = recipe.data_options if name == recipe.data else recipe.data_options.only(DATA[name].inherited)
    options = options.over(kept)
    check(name, options)
    return replace(recipe, data=name, data_options=options)


def _batch_size(config: Config, world_size: int) -> int | None:
    """Return the samples of one micro-batch of a rank (its whole step without accumulation); None: the recipe's
    number."""
    own, together, parts = (
        config.train.batch_size,
        config.train.global_batch_size,
        world_size * config.train.step.accumulate,
    )
    if together is None:
        return own
    if own is not None:
        raise ValueError("train.batch_size and train.global_batch_size contradict each other: give one of them")
    if together > MOST_SAMPLES * world_size:
        raise ValueError(f"train.global_batch_size={together} must be {MOST_SAMPLES * world_size} or less")
    if together < 1 or together % parts:
        near = max(round(together / parts), 1) * parts
        each = parts // world_size
        into = f"equal parts for {world_size} ranks" + (f" in {each} micro-batches" if each > 1 else "")
        raise ValueError(f"train.global_batch_size={together} cannot be cut into {into}: {near} can")
    return together // parts


def check_engine(config: Config) -> None:
    """Raise ValueError for settings that the engine does not support."""
    engine, policy = config.engine.name, config.mode.policy
    able = engine_of(engine)
    if able.policies and policy not in able.policies:
        raise ValueError(f"engine={engine} cannot do policy={policy}: choose one of {', '.join(able.policies)}")
    if able.in_place and not able.one_rank and config.cluster.faults:
        raise ValueError(
            f"cluster.faults with engine={engine}, whose ranks are threads of one process: use mode=nccl_sync"
        )
    if able.virtual:
        check_virtual(config)


def world_size_of(size: int | None, engine: str) -> int:
    """Return the user's number of ranks, or the engine's default. Raise ValueError."""
    able = engine_of(engine)
    if size is None:
        return 1 if able.one_rank else 2
    most = MAX_VIRTUAL if able.virtual else MAX_WORLD
    if not 1 <= size <= most:
        raise ValueError(f"world_size={size} is not between 1 and {most}")
    if not able.fits(size):
        remedy = "leave it out, or choose another mode"
        raise ValueError(f"world_size={size} with mode={engine}, which has one rank: {remedy}")
    return size


def check_cluster(config: Config, world_size: int, machine: Machine) -> None:
    """Raise ValueError for an invalid device, transport, deadline, number of restarts or emulated speed."""
    cluster = config.cluster
    if cluster.device not in DEVICES:
        raise ValueError(unknown("cluster.device", cluster.device, DEVICES))
    if cluster.device == "cuda" and not machine.gpus:
        raise ValueError("cluster.device=cuda, but torch can use no GPU here; leave it out to train on the CPU")
    here, backend, engine = machine.ranks(world_size), backend_of(config.mode), engine_of(config.engine.name)
    check_transport(cluster.transport, cluster.device, machine.gpus, here, "cluster.transport")
    check_sharing(config.mode.backend, cluster.device, machine.gpus, here)
    if backend is not None and backend.torch_native and cluster.transport == "memory":
        mode = config.mode.name
        raise ValueError(f"cluster.transport=memory with mode={mode}, which has PyTorch's own; leave it out")
    number("cluster.deadline_s", cluster.deadline_s, 0.1, DAY_S)
    check_bind(cluster.bind)
    if restarts(cluster.restart) != 0:
        if backend is None or not backend.checkpoints or engine.virtual or world_size == 1:
            why = "which makes no checkpoints" if world_size > 1 else "and one rank, which is this very process"
            remedy = "choose nccl_*, cpu_*, zero* or torch_ddp, with world_size=2 or more"
            raise ValueError(f"cluster.restart with mode={config.mode.name}, {why}: {remedy}")
        if backend.averages and not cluster.tolerate_loss:
            raise ValueError("cluster.restart needs cluster.tolerate_loss=true")
    _check_comers(config, world_size)
    whole("cluster.compare", cluster.compare, 0, MOST_SAMPLES)
    together = config.mode.backend == "nccl" and meets_every_step(config.mode.policy) and not engine.virtual
    if cluster.compare and not together:
        raise ValueError("cluster.compare is for mode=nccl_sync, whose ranks hold the same bits after every step")
    emulated("cluster.speeds", cluster.speeds, world_size if world_size > 1 else None)
    if cluster.step_s:
        number("cluster.step_s", cluster.step_s, LEAST_STEP_S, DAY_S, remedy="0.005 makes a step at speed 1 last 5 ms")
        if engine.virtual or (engine.in_place and not engine.one_rank):
            remedy = "set virtual.step_s" if engine.virtual else "choose mode=nccl_sync"
            raise ValueError(f"cluster.step_s with mode={config.mode.name}, whose ranks are of one process: {remedy}")


def _check_comers(config: Config, world_size: int) -> None:
    """Raise ValueError for absent ranks or spares in a mode that ranks cannot join."""
    cluster, backend = config.cluster, backend_of(config.mode)
    whole("cluster.absent", cluster.absent, 0, max(world_size - 1, 0))
    whole("cluster.spares", cluster.spares, 0, MAX_WORLD)
    if cluster.absent and cluster.spares:
        raise ValueError(
            "cluster.absent and cluster.spares contradict each other: a spare takes the place of an absent rank"
        )
    if cluster.absent or cluster.spares:
        virtual = engine_of(config.engine.name).virtual
        if backend is None or not backend.averages or virtual or world_size == 1:
            raise ValueError(f"cluster.absent and cluster.spares with mode={config.mode.name}: choose nccl_* or cpu_*")
        if not cluster.tolerate_loss:
            raise ValueError("cluster.absent and cluster.spares need cluster.tolerate_loss=true")


def links_of(config: Config, world_size: int) -> list[str] | None:
    """Return the emulated links in their text form, or None. Raise ValueError for links that cannot be emulated."""
    words, mode = config.cluster.links, config.mode
    if words is None or words == []:
        return None
    if not isinstance(words, str | list):
        raise ValueError(f"cluster.links={words!r} must be a link or a list of them; such as {FORM}")
    try:
        links = links_for(words, world_size)
    except ValueError as error:
        raise ValueError(f"cluster.links: {error}") from None
    if world_size == 1:
        return None
    backend = backend_of(mode)
    if backend is None:
        raise ValueError(f"cluster.links with mode={mode.name}, whose ranks are in one process: use mode=nccl_sync")
    if backend.torch_native:
        raise ValueError(
            f"cluster.links with mode={mode.name}, whose collectives are PyTorch's own: use mode=nccl_sync"
        )
    return links.words if links is not None else None


def check_profile(profile: ProfileConfig, mode: Mode, world_size: int, machine: Machine) -> None:
    """Raise ValueError if torch.profiler cannot run in each rank."""
    if not 0 <= profile.steps <= MAX_PROFILED:
        raise ValueError(f"profile.steps={profile.steps} is not between 0 and {MAX_PROFILED}")
    if profile.steps and engine_of(mode.engine).in_place and world_size > 1:
        threads = f"engine={mode.engine}, whose ranks are threads of one process"
        raise ValueError(f"profile.steps with {threads}: profile mode=nccl_sync")
    if profile.steps and machine.hosts > 1:
        raise ValueError(f"profile.steps on {machine.hosts} hosts: what ranks record stays on theirs; use one host")


def check_paths(config: Config) -> None:
    """Raise ValueError if the path of the results, the data or the run to resume is empty."""
    path("output", config.output)
    path("data.dir", config.data.dir)
    if config.resume is not None:
        path("resume", config.resume)


def script_of(cluster: ClusterConfig, world_size: int) -> tuple[Fault, ...]:
    """Return the script of faults. Raise ValueError for a fault that cannot happen."""
    most = restarts(cluster.restart)
    return script(cluster.faults, world_size, None if most is None else most + cluster.spares)


def check_faults(job: Job, mode: Mode, samples: int) -> None:
    """Raise ValueError if a rank never reaches the step of a fault. `samples`: samples of an epoch."""
    check_reach(job.faults, samples, job.epochs, job.batch_size, job.world_size, mode.alike)
    if mode.backend is not None and not engine_of(mode.engine).virtual:
        check_link_faults(job.faults, mode.backend, job.links)


def checkpoint_of(settings: Checkpointing, mode: Mode, keys: Collection[str] = ()) -> Checkpointing:
    """Return the settings, switched off for a mode that makes no checkpoints. Raise ValueError if such a mode is given
    settings that are not the default, or that the user set: `keys` has the keys that the user set."""
    backend = backend_of(mode)
    if (backend is None or backend.checkpoints) and not engine_of(mode.engine).virtual:
        return settings
    wanted = settings != Checkpointing() or any(key.startswith("checkpoint.") for key in keys)
    if settings.every and wanted:
        raise ValueError(f"mode={mode.name} makes no checkpoints: leave out checkpoint.*, or choose another mode")
    return Checkpointing(every=0)


def speeds_of(speeds: list[float], world_size: int, step_s: float = 0.0) -> list[float]:
    """Return the emulated speeds of the first `world_size` ranks; empty if all are 1 and `step_s` sets no step time."""
    speeds = speeds[:world_size] or [1.0] * world_size
    return speeds if step_s or any(speed != 1 for speed in speeds) else []


def dashboard_port(value: Any) -> int | None:
    """Return the port that `dashboard=...` asks for; 0: any free port; None: no dashboard. Raise ValueError."""
    word = str(value).lower()
    if word in ("none", "null", "false", "no", "off", "n", "0"):
        return None
    if word in ("true", "yes", "on", "y", "1"):
        return 0
    if isinstance(value, int) and 1 < value < 1 << 16:
        return value
    raise ValueError(f"dashboard={value!r} must be true, false or a port from 2 to 65535, such as dashboard=8000")
