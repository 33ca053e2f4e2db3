"""Registers the groups of `Config` with Hydra, and makes a `Config` of what Hydra composed.

The members of the groups `model`, `mode`, `engine`, `policy` and `backend` come from the registries in code, so a new
model or policy needs no YAML. Knows Hydra; must not know torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from functools import cache
from typing import Any, get_type_hints

from omegaconf import DictConfig, OmegaConf

from bench.config.config import Choice, Config, ModelConfig
from bench.models import MODELS
from ddp import user_code
from ddp.backends import BACKENDS, paired_backends
from ddp.core.policies import POLICIES, Policy
from ddp.engine import ENGINES
from ddp.engine.modes import Mode, modes


def policy_node(name: str, policy: type[Policy]) -> DictConfig:
    """Make a typed node of a policy's settings, with the policy's `name` added."""
    node: DictConfig = OmegaConf.structured(policy)
    OmegaConf.set_readonly(node, False)  # frozen dataclasses make nodes that refuse every override
    OmegaConf.set_struct(node, False)
    node["name"] = name
    OmegaConf.set_struct(node, None)
    return node


def _schema() -> DictConfig:
    node: DictConfig = OmegaConf.structured(Config)
    for group in (node.averaging, node.checkpoint, node.loader, node.virtual):
        OmegaConf.set_readonly(group, False)
    return node


_LAST: list[list[tuple[str, Any]]] = []
"""The groups and members registered last."""


def register() -> None:
    """Register the schema and the groups' members with Hydra, unless they are unchanged since the last call."""
    store = _store()
    members = [list(group.items()) for group in (MODELS, ENGINES, BACKENDS, modes(), POLICIES)]
    if members == _LAST and "schema.yaml" in store.repo:
        return
    _LAST[:] = members
    vars(store)["__deepcopy__"] = _store  # Hydra copies it for each composition, and again what it takes from it
    store.store(name="schema", node=_schema())
    for name in MODELS:
        source = MODELS[name]  # a launcher of Hydra's may compose in another process, which does not know a file's name
        store.store(group="model", name=name, node=ModelConfig(source if user_code.is_file(source) else name))
    # Backends with one policy are accepted as engines too, as in earlier versions.
    for group, names in (("engine", [*ENGINES, *(BACKENDS.keys() - paired_backends())]), ("backend", BACKENDS)):
        for name in names:
            store.store(group=group, name=name, node=Choice(name))
    for name, mode in modes().items():
        store.store(group="mode", name=name, node=_preset(mode), package="_global_")
    for name, policy in POLICIES.items():
        store.store(group="policy", name=name, node=policy_node(name, policy))


def _store(memo: object = None) -> Any:
    """Return Hydra's store of configurations, which is the only one: also as its copy."""
    from hydra.core.config_store import ConfigStore  # takes its time, and who judges runs needs none of it

    return ConfigStore.instance()


def _preset(mode: Mode) -> dict[str, Any]:
    """Make the preset of a mode: its parts, and the settings of its policy. A mode whose backend has one policy
    ignores a `policy` or `backend` given with it, which a sweep has for its other modes."""
    if mode.name in BACKENDS:
        return {"defaults": [{"override /engine": mode.name}]}
    parts = {"engine": mode.engine, "policy": mode.policy, "backend": mode.backend}
    defaults = [{f"override /{group}": name} for group, name in parts.items() if name is not None]
    return {"defaults": defaults} | ({"policy": dict(mode.settings)} if mode.settings else {})


def typed(composed: DictConfig) -> Config:
    """Return the composed configuration as a `Config` whose `policy` is a plain dictionary of a name and settings.

    Raise omegaconf's exceptions for keys that the schema does not have (Hydra lets `+key=value` add them), for missing
    groups and for interpolations that lead nowhere."""
    values: dict[str, Any] = {}
    for key in (str(key) for key in composed if key != "hydra"):
        part = composed[key]
        nested = OmegaConf.is_config(part)
        values[key] = OmegaConf.to_container(part, resolve=True, throw_on_missing=True) if nested else part
    config = _made(Config, composed, values) or OmegaConf.to_object(OmegaConf.merge(_schema(), values))
    assert isinstance(config, Config)
    return _at_home(config)


def _at_home(config: Config) -> Config:
    """Return the configuration with the home folder for `~` in its paths, as an experiment's file may write it."""
    home, data = os.path.expanduser, config.data
    data = replace(data, dir=home(data.dir), path=data.path and home(data.path))
    return replace(config, output=home(config.output), resume=config.resume and home(config.resume), data=data)


def _made(cls: Any, node: DictConfig, values: Mapping[str, Any]) -> Any:
    """Make an instance of `cls` from a node that was composed with its schema, so that types are checked already.
    Return None if the node has another schema or further keys."""
    hints: dict[str, Any] = _hints(cls)
    made: Any = OmegaConf.get_type(node)
    if made is not cls or values.keys() != hints.keys():
        return None
    parts = {
        key: _made(hint, node[key], values[key])
        for key, hint in hints.items()
        if isinstance(hint, type) and is_dataclass(hint)
    }
    return None if None in parts.values() else cls(**{**values, **parts})


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)
