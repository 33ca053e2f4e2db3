"""The planned runs of an experiment, as Hydra composes them for `bench plan`. Imports no torch.

A sweep is the product of its varied settings. Some engines have one rank only, so their world size is always 1. Points
are distinguished by the fields of `ExperimentPoint`. If other settings vary, too, a point is planned once for each
combination of their values that makes another run of it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from inspect import signature
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml  # type: ignore[import-untyped]

from bench.base.paths import CONF, experiments
from bench.base.usage import UsageError
from bench.config.config_checks import speeds_of, world_size_of
from bench.models import MODELS, own_model
from bench.results.runfolder import Run
from ddp import regular_files
from ddp.core.policies import POLICIES
from ddp.engine.modes import Mode, backend_of, engine_of, mode_of, modes
from ddp.settings import known

if TYPE_CHECKING:
    from omegaconf import DictConfig

WAY = ("mode", "engine", "policy", "backend")
"""Configuration groups that make a mode."""


NO_OTHER_RUN = (
    *("audit", "timing", "data.dir", "cluster.deadline_s", "cluster.bind"),
    *("report", "validate", "force", "logger", "dashboard", "objective"),
)
"""Keys that no run is told apart by, besides those of `checkpoint`."""


class ExperimentPoint(NamedTuple):
    """What distinguishes the runs of an experiment."""

    model: str
    mode: str
    world_size: int
    seed: int


@dataclass(frozen=True)
class PlannedExperiment:
    """An experiment and its runs."""

    experiment: str
    points: tuple[ExperimentPoint, ...]

    def missing(self, runs: Sequence[Run]) -> list[ExperimentPoint]:
        """Return the planned runs that have no folder, in the order of the plan."""
        metrics = [run.metrics for run in runs]
        there = {(ExperimentPoint(m.model, m.mode, m.world_size, m.seed), m.config_hash) for m in metrics}
        return list((Counter(self.points) - Counter(point for point, _ in there)).elements())


def planned(root: Path, name: str | None, conf: Path = CONF, presets: Path | None = None) -> PlannedExperiment | None:
    """Return the experiment `name`; without a name, the experiment whose `output` is the tree `root`, or None.
    `presets`: a user's folder, whose experiments take precedence over those of `conf`.

    Raises ValueError for an unknown name, and for a file that is no experiment or whose runs cannot be determined.
    """
    files = experiments(conf, presets)
    if name is not None:
        if name not in files:
            raise ValueError(f"no experiment {name!r}; there are {', '.join(files)}")
        return _read(files[name], conf, presets)
    for file in files.values():
        with suppress(ValueError):  # an experiment that was not requested may be broken
            if (output := _output(file)) and Path(os.path.expanduser(str(output))).resolve() == root.resolve():
                return _read(file, conf, presets)
    return None


def _read(file: Path, conf: Path, presets: Path | None) -> PlannedExperiment:
    from bench.config.compose import composing

    _body(file)
    try:
        with composing(conf, None if presets is None else str(presets)) as composed:
            points = tuple(_points(file.stem, composed))
    except (UsageError, ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{file}: {str(error).splitlines()[0]}") from None
    if not points:
        raise ValueError(f"{file}: it plans no run: a part of its sweep has no values, or all of it is left out")
    return PlannedExperiment(file.stem, points)


def _points(name: str, composed: Callable[[list[str]], DictConfig]) -> list[ExperimentPoint]:
    """Return the runs of an experiment. Composing a mode takes 0.1 s, so the first is composed; others are taken by
    their names."""
    from hydra.core.global_hydra import GlobalHydra

    from bench.config.sweep_points import values

    chosen = [f"experiment={name}"]
    base = composed(chosen)
    loader = GlobalHydra.instance().config_loader()
    varied = {
        key.lstrip("+").removesuffix(".name"): values(f"{key}={value}", loader)
        for key, value in (base.hydra.sweeper.params or {}).items()
    }
    models = [word.partition("=")[2] for word in varied["model"]] if "model" in varied else [base.model.name]
    seeds, sizes = (list(map(_number, varied[key])) if key in varied else [base[key]] for key in ("seed", "world_size"))
    first, *others = product(*(words for key, words in varied.items() if key in WAY))
    way = _way(composed([*chosen, *first]) if first else base)
    # A mode is known by its name, unless the experiment changes a part of it, which the first one shows.
    named: dict[tuple[str, ...], Mode] = {(f"mode={mode.name}",): mode for mode in modes().values()}
    named = named if named.get(first) == way else {}
    ways = [way, *(named.get(words) or _way(composed([*chosen, *words])) for words in others)]
    models = [known("model", own_model(model), MODELS) for model in models]
    if None in seeds:
        raise ValueError("seed is null: give a number")
    points = {
        ExperimentPoint(model, way.name, world_size_of(size, way.engine), seed): way
        for seed, model, way, size in product(seeds, models, ways, sizes)
        if len(sizes) == 1 or size is None or engine_of(way.engine).fits(size)
    }
    further = {key: words for key, words in varied.items() if key not in (*WAY, *ExperimentPoint._fields)}
    each = {(point.mode, point.world_size): way for point, way in points.items()}
    runs = {key: _runs(further, way, key[1], base.cluster.step_s) for key, way in each.items()}
    return [point for point in points for _ in range(runs[point.mode, point.world_size])]


def _runs(further: Mapping[str, Sequence[str]], way: Mode, size: int, step_s: float) -> int:
    """Return how many runs of a point its other settings make. `further`: key -> the overrides that set it; `step_s`: its
    value if no override sets it."""
    values = {key: [word.partition("=")[2] for word in words] for key, words in further.items()}
    values = {key: each for key, each in values.items() if _counts(key, way, size)}
    made = (dict(zip(values, each, strict=True)) for each in product(*values.values()))
    return len({tuple(_cut(settings, size, step_s).values()) for settings in made})


def _counts(key: str, way: Mode, size: int) -> bool:
    """Return whether another value of this setting makes another run."""
    group, _, name = key.partition(".")
    backend = backend_of(way)
    match group:
        case "policy":
            policy = POLICIES.get(way.policy or "")
            return policy is not None and name in signature(policy).parameters
        case "averaging":
            return backend is not None and backend.averages
        case "virtual":
            return engine_of(way.engine).virtual
    return group != "checkpoint" and key not in NO_OTHER_RUN and (key != "cluster.links" or size > 1)


def _cut(settings: Mapping[str, str], size: int, step_s: float) -> dict[str, Any]:
    """Return the settings, by key, with the speeds of those ranks alone that there are."""
    speeds = yaml.safe_load(settings.get("cluster.speeds", "null"))
    if not isinstance(speeds, list):
        return dict(settings)
    step_s = yaml.safe_load(settings.get("cluster.step_s", str(step_s)))
    return {**settings, "cluster.speeds": tuple(speeds_of(speeds, size, step_s))}


def _way(config: DictConfig) -> Mode:
    return mode_of(config.engine.name, config.policy.name, config.backend.name)


def _number(word: str) -> int | None:
    """Return the number in a setting; None for null."""
    key, _, text = word.partition("=")
    if text == "null":
        return None
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{word}: {key} is a whole number") from None


def _output(file: Path) -> Any:
    """Return the `output` of an experiment, by libyaml, which is ten times as fast as omegaconf. Raises ValueError."""
    try:
        body = yaml.load(regular_files.content(file), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, OSError, RecursionError) as error:
        raise ValueError(f"{file}: not an experiment: {error}") from None
    return body.get("output") if isinstance(body, dict) else None


def _body(file: Path) -> dict[str, Any]:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        body = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    except (yaml.YAMLError, OmegaConfBaseException, OSError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{file}: not an experiment: {str(error).splitlines()[0]}") from None
    return {str(key): value for key, value in body.items()} if isinstance(body, dict) else {}
