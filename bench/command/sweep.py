"""What a sweep varies, as Hydra's own sweeper reads it, and which of its points are no runs.

One rule, for whoever composes a sweep (`bench.command.compose`, so the verbs `run` and `plan`): a sweep over world sizes
is a product, in which engines of one rank meet sizes that they cannot have. These points are left out and said. Where one
size is asked for, it is the user's mistake. `bench.report.planned` goes by the same (`EngineSpec.fits`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from bench.runner.modes import engine_of


def left_out(composed: DictConfig, overrides: Sequence[str], params: Mapping[str, str]) -> str | None:
    """Return why this point of a sweep is no run; None if it is one. `overrides`: of the command line; `params`: what an
    experiment sweeps, which they overrule."""
    engine, size = (OmegaConf.select(composed, key) for key in ("engine.name", "world_size"))
    if not isinstance(engine, str) or not isinstance(size, int) or engine_of(engine).fits(size):
        return None
    sizes = _effective(overrides, params).get("world_size")
    if sizes is None or len(values(sizes)) < 2:
        return None
    return f"{engine} has one rank, so world_size={size} is no run of it"


def empty(overrides: Sequence[str], params: Mapping[str, str], loader: ConfigLoader) -> list[str]:
    """Return the parts of a sweep that have no values. With one of them all of the sweep is empty."""
    return [override for override in _effective(overrides, params).values() if not values(override, loader)]


def _effective(overrides: Sequence[str], params: Mapping[str, str]) -> dict[str, str]:
    """Return key -> the override that counts."""
    swept = [f"{key}={value}" for key, value in params.items()]
    return {override.partition("=")[0]: override for override in (*swept, *overrides)}


def values(override: str, loader: ConfigLoader | None = None) -> list[str]:
    """Return the overrides that one of a sweep stands for. `loader` knows the members of groups. Raise HydraException."""
    (parsed,) = OverridesParser.create(config_loader=loader).parse_overrides([override])
    if not parsed.is_discrete_sweep():
        return [override]
    return [f"{parsed.get_key_element()}={value}" for value in parsed.sweep_string_iterator()]
