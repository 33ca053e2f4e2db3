"""The points of a sweep: lists them, says which points are left out and which parts of the sweep are empty. Runs
nothing.

A sweep over world sizes is a product, in which engines with one rank meet sizes that they do not support. These points
are left out, with a line on each. If the user asked for a single size, it is an error (`EngineSpec.fits`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from ddp.engine.modes import engine_of


def points(overrides: Sequence[str], loader: ConfigLoader) -> list[tuple[str, ...]]:
    """Return the overrides of each point: the product of all choices, the last key varying fastest. If a key comes
    twice, the later override counts. Raise HydraException."""
    varied: dict[str, list[str]] = {}
    for parsed in OverridesParser.create(config_loader=loader).parse_overrides(list(overrides)):
        key = parsed.get_key_element()
        if parsed.is_discrete_sweep():
            varied[key] = [f"{key}={value}" for value in parsed.sweep_string_iterator()]
        elif parsed.is_sweep_override():
            kind = parsed.value_type.name.lower().replace("_", " ") if parsed.value_type is not None else "such values"
            raise HydraException(f"{parsed.input_line}: {kind} is for sweepers that search, as in hydra/sweeper=optuna")
        else:
            varied[key] = [f"{key}={parsed.get_value_element_as_str()}"]
    return list(product(*varied.values()))


def ignored_sweeper(loader: Any, config: DictConfig) -> str | None:
    """Return the sweeper that a preset, or a preset included by it, asks for without effect: Hydra takes the first
    choice, that of the primary configuration. None if no preset asks for one."""
    words = [*config.hydra.overrides.hydra, *config.hydra.overrides.task]
    for part in loader.compute_defaults_list(config.hydra.job.config_name, words, RunMode.MULTIRUN).defaults:
        preset = None if part.primary or part.config_path is None else loader.repository.load_config(part.config_path)
        for each in [] if preset is None or preset.defaults_list is None else preset.defaults_list:
            if getattr(each, "override", False) and str(each.group).lstrip("/") == "hydra/sweeper":
                return str(each.value)
    return None


def batches(every: Sequence[tuple[str, ...]], most: int | None) -> Iterator[tuple[int, Sequence[tuple[str, ...]]]]:
    """Yield (number of the first point, points) of each batch of at most `most` points; None: one batch of all."""
    size = most or max(1, len(every))
    for first in range(0, len(every), size):
        yield first, every[first : first + size]


def left_out_reason(composed: DictConfig, overrides: Sequence[str], params: Mapping[str, str]) -> str | None:
    """Return why this point of a sweep is left out; None if it is a run. `overrides`: those of the command line;
    `params`: the experiment's sweep, over which `overrides` take precedence."""
    engine, size = (OmegaConf.select(composed, key) for key in ("engine.name", "world_size"))
    if not isinstance(engine, str) or not isinstance(size, int) or engine_of(engine).fits(size):
        return None
    sizes = _effective(overrides, params).get("world_size")
    if sizes is None or len(values(sizes)) < 2:
        return None
    return f"{engine} has one rank, so world_size={size} is no run of it"


def empty(overrides: Sequence[str], params: Mapping[str, str], loader: ConfigLoader) -> list[str]:
    """Return the parts of a sweep that have no values. One such part makes the whole sweep empty."""
    return [override for override in _effective(overrides, params).values() if not values(override, loader)]


def _effective(overrides: Sequence[str], params: Mapping[str, str]) -> dict[str, str]:
    """Return key -> the override that counts."""
    swept = [f"{key}={value}" for key, value in params.items()]
    return {override.partition("=")[0]: override for override in (*swept, *overrides)}


def values(override: str, loader: ConfigLoader | None = None) -> list[str]:
    """Return the single-value overrides that a sweep's override stands for. `loader` knows the members of groups.
    Raise HydraException."""
    (parsed,) = OverridesParser.create(config_loader=loader).parse_overrides([override])
    if not parsed.is_discrete_sweep():
        return [override]
    return [f"{parsed.get_key_element()}={value}" for value in parsed.sweep_string_iterator()]
