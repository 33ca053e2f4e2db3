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


def left_out(composed: DictConfig, words: Sequence[str], params: Mapping[str, str]) -> str | None:
    """Why this point of a sweep is no run; None if it is one. `words`: the overrides of the command line; `params`: what an
    experiment sweeps, which they overrule."""
    engine, size = (OmegaConf.select(composed, key) for key in ("engine.name", "world_size"))
    if not isinstance(engine, str) or not isinstance(size, int) or engine_of(engine).fits(size):
        return None
    said = _said(words, params).get("world_size")
    if said is None or len(values(said)) < 2:
        return None
    return f"{engine} has one rank, so world_size={size} is no run of it"


def empty(words: Sequence[str], params: Mapping[str, str], loader: ConfigLoader) -> list[str]:
    """The parts of a sweep, as they were said, that have no values. With one of them all of the sweep is empty."""
    return [word for word in _said(words, params).values() if not values(word, loader)]


def _said(words: Sequence[str], params: Mapping[str, str]) -> dict[str, str]:
    """Key -> the override that counts."""
    return {word.partition("=")[0]: word for word in [*(f"{key}={value}" for key, value in params.items()), *words]}


def values(word: str, loader: ConfigLoader | None = None) -> list[str]:
    """The overrides that one of a sweep stands for. `loader` knows the members of groups. Raises HydraException."""
    (override,) = OverridesParser.create(config_loader=loader).parse_overrides([word])
    if not override.is_discrete_sweep():
        return [word]
    return [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]
