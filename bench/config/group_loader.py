"""Composes the points of a sweep fast: Hydra composes each choice of groups once; other settings are merged in. Knows
no run.

Hydra needs 0.1 s for a point, most of it for its own settings; this loader needs a millisecond. A point is the
composition of its choices with its values set as Hydra sets them. If the chosen groups have their members in code and
change different parts of the configuration, the composition is assembled from those of the single choices. A setting
of one policy is left out of points with another policy. Hydra itself composes points with other kinds of overrides
(additions, deletions, packages, mappings) and points that fail, so that error messages are Hydra's.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigSource
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from ddp.core.policies import POLICIES

IN_CODE = ("model", "engine", "policy", "backend", "mode")
"""Groups whose members are in code: they have no defaults that depend on choices of other groups."""
OURS = ("hydra", "main", "schema")
"""Sources of these members. If the user adds a search path, its members may have the same names."""


@dataclass
class Composition:
    """Hydra's composition of some choices."""

    config: DictConfig
    content: dict[str, Any]
    """The configuration as plain values, for comparison."""
    choices: dict[str, str]
    """Group -> the chosen member."""


@dataclass
class Whole:
    """A composition assembled from others. It is changed in place from point to point, as copying the whole would take
    most of the time."""

    base: Composition
    config: DictConfig
    choices: dict[str, str]
    taken: Mapping[str, Composition] = field(default_factory=dict)
    """Top-level key -> the composition that it comes from, if not the base."""

    def take(self, parts: Mapping[str, Composition]) -> None:
        """Take `parts` (top-level keys) from other compositions, with the names of their choices, and all other keys
        from the base."""
        if parts is self.taken:
            return
        ours = self.base.choices
        choices = ours | {
            key: name for each in parts.values() for key, name in each.choices.items() if ours.get(key) != name
        }
        with read_write(self.config), open_dict(self.config):
            for key in parts.keys() | self.taken.keys():
                source = parts.get(key, self.base)
                if source is not self.taken.get(key, self.base):
                    nested, plain = source.content[key]
                    self.config[key] = source.config[key] if nested else plain  # which copies it
        if choices != self.choices:
            runtime = self.config.hydra.runtime
            with read_write(runtime):
                runtime.choices = choices
        self.taken, self.choices = parts, choices


class GroupLoader(ConfigLoader):
    """Hydra's loader, faster for the points of one sweep."""

    def __init__(self, loader: ConfigLoader) -> None:
        self._loader = loader
        self._forget()

    def _forget(self) -> None:
        self._parsed: dict[str, Override] = {}
        self._groups: frozenset[str] | None = None
        self._compositions: dict[tuple[str, ...], Composition] = {}
        self._points: dict[tuple[tuple[str, ...], ...], DictConfig] = {}
        self._parts: dict[tuple[str, ...], Mapping[str, Composition] | None] = {}
        self._wholes: dict[tuple[str, ...], Whole] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the compositions: launchers send a loader with every job."""
        return {"_loader": self._loader}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._loader = state["_loader"]
        self._forget()

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        """Compose one point. Raise HydraException."""
        point = deepcopy(self.point(master_config, sweep_overrides))
        name_point(point.hydra, sweep_overrides)
        OmegaConf.copy_cache(from_config=master_config, to_config=point)
        return point

    def point(self, master: DictConfig, overrides: list[str]) -> DictConfig:
        """Compose one point, without its name (`name_point`). The result is valid until the next call. Raise
        HydraException."""
        parsed = [self._parse(word) for word in overrides]
        if not all(map(_plain, parsed)):
            return self._loader.load_sweep_config(master, overrides)
        chosen = tuple(word for word, each in zip(overrides, parsed, strict=True) if self._is_choice(each))
        settings = [each for word, each in zip(overrides, parsed, strict=True) if word not in chosen]
        names = tuple(each.key_or_group for each in settings)
        try:
            point = self._from_parts(master, chosen, names)
            if point is None:
                if (chosen, names) not in self._points:
                    self._points[chosen, names] = deepcopy(self._composed(master, chosen).config)
                point = self._points[chosen, names]
            for each in settings:
                if not _missing(point, each.key_or_group):
                    OmegaConf.update(point, each.key_or_group, each.value(), merge=True)
        except (HydraException, OmegaConfBaseException):
            self._points.pop((chosen, names), None)
            self._wholes.pop(names, None)
            return self._loader.load_sweep_config(master, overrides)
        return point

    def left_out(self, master: DictConfig, overrides: list[str]) -> set[str]:
        """Return the overrides of a point that set another policy's settings. Raise HydraException."""
        point = self.point(master, overrides)
        return {word for word in overrides if _missing(point, self._parse(word).key_or_group)}

    def _parse(self, word: str) -> Override:
        if word not in self._parsed:
            self._parsed[word] = OverridesParser.create(config_loader=self._loader).parse_override(word)
        return self._parsed[word]

    def _is_choice(self, override: Override) -> bool:
        """Tell whether the override chooses a group's member or sets a key of Hydra: Hydra must compose both."""
        key = override.key_or_group
        if self._groups is None:
            self._groups = frozenset(self._loader.list_groups(""))
        return _of_hydra(key) or "/" in key or key in self._groups

    def _composed(self, master: DictConfig, chosen: tuple[str, ...]) -> Composition:
        if chosen not in self._compositions:
            # If no choice varies, this is `master`, in which only the settings of the point are still to be set.
            constant = set(chosen) <= set(master.hydra.overrides.task)
            config = master if constant else self._loader.load_sweep_config(master, list(chosen))
            choices = dict(config.hydra.runtime.choices)
            self._compositions[chosen] = Composition(config, _content(config), choices)
        return self._compositions[chosen]

    def _from_parts(self, master: DictConfig, chosen: tuple[str, ...], names: tuple[str, ...]) -> DictConfig | None:
        """Assemble a composition from those of its single choices; None: Hydra has to compose it. `names`: the keys
        that the point's settings will change."""
        if chosen not in self._parts:
            self._parts[chosen] = self._parts_of(master, chosen)
        parts = self._parts[chosen]
        if parts is None:
            return None
        if names not in self._wholes:
            base = next(iter(self._compositions.values()))
            self._wholes[names] = Whole(base, deepcopy(base.config), base.choices)
        self._wholes[names].take(parts)
        return self._wholes[names].config

    def _parts_of(self, master: DictConfig, chosen: tuple[str, ...]) -> Mapping[str, Composition] | None:
        """Return top-level key -> the single choice's composition that it comes from; None: Hydra has to compose the
        point."""
        first = next(iter(self._compositions), None)
        groups = [self._parse(word).key_or_group for word in chosen]
        if first is None or groups != [self._parse(word).key_or_group for word in first] or not self._all_ours():
            return None
        varied = [place for place, word in enumerate(chosen) if word != first[place]]
        if len(varied) < 2 or not {groups[place] for place in varied}.issubset(IN_CODE):
            return None
        base, taken = self._compositions[first], dict[str, Composition]()
        for place in varied:
            single = self._composed(master, (*first[:place], chosen[place], *first[place + 1 :]))
            parts = {key for key in base.content | single.content if base.content.get(key) != single.content.get(key)}
            if parts & taken.keys() or "hydra" in parts or not parts <= base.config.keys() & single.config.keys():
                return None
            taken |= dict.fromkeys(parts, single)
        return taken

    def _all_ours(self) -> bool:
        return all(source.provider in OURS for source in self._loader.get_sources())

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        return self._loader.load_configuration(config_name, overrides, run_mode, from_shell, validate_sweep_overrides)

    def get_search_path(self) -> ConfigSearchPath:
        return self._loader.get_search_path()

    def get_sources(self) -> list[ConfigSource]:
        return self._loader.get_sources()

    def list_groups(self, parent_name: str) -> list[str]:
        return self._loader.list_groups(parent_name)

    def get_group_options(
        self,
        group_name: str,
        results_filter: ObjectType | None = ObjectType.CONFIG,
        config_name: str | None = None,
        overrides: list[str] | None = None,
    ) -> list[str]:
        return self._loader.get_group_options(group_name, results_filter, config_name, overrides)

    def compute_defaults_list(self, config_name: str | None, overrides: list[str], run_mode: RunMode) -> Any:
        return self._loader.compute_defaults_list(config_name, overrides, run_mode)


def _missing(point: DictConfig, key: str) -> bool:
    """Tell whether `key` is a setting of a policy, but not of the point's policy."""
    group, _, name = key.partition(".")
    if group != "policy" or name in point.policy:
        return False
    return any(name in inspect.signature(policy).parameters for policy in POLICIES.values())


def _plain(override: Override) -> bool:
    """Tell whether the override replaces the value of an existing key."""
    changes = override.type is OverrideType.CHANGE and override.package is None
    return changes and not isinstance(override.value(), dict)


def _content(config: DictConfig) -> dict[str, Any]:
    """Return top-level key -> (class, plain content), without Hydra's records of the choices and overrides."""
    content = OmegaConf.to_container(config, resolve=False)
    assert isinstance(content, dict)
    content["hydra"]["runtime"].pop("choices")
    content["hydra"]["overrides"].pop("task")
    content["hydra"]["job"].pop("override_dirname")
    nested = {key: isinstance(part, dict | list) for key, part in content.items()}
    return {str(key): (nested[key] and OmegaConf.get_type(config, str(key)), part) for key, part in content.items()}


def name_point(hydra: Any, overrides: Sequence[str], folder: bool = True) -> None:
    """Name a point by its overrides, as Hydra does; with `folder`, also name the folder of its job. `hydra`: Hydra's
    part of the point's configuration."""
    task = [word for word in overrides if not _of_hydra(word)]
    with read_write(hydra), open_dict(hydra):
        hydra.overrides.task = task
        if not folder:
            return
        style = hydra.job.config.override_dirname
        words = sorted(word for word in task if word.partition("=")[0] not in style.exclude_keys)
        hydra.job.override_dirname = style.item_sep.join(words).replace("=", style.kv_sep)


def _of_hydra(word: str) -> bool:
    return word.startswith(("hydra.", "hydra/"))
