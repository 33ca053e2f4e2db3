"""Models, data sets and other parts of the user's own: their names in a run, and the digests of their code.

A changed file makes another cell, so that a baseline only judges runs of the same code. Reads files; imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bench.config.config import Config
from bench.config.overrides import setting, spelt, texts
from bench.models import MODELS, own_model
from bench.models.data import DATA, own_data
from bench.models.setup import Setup
from ddp import user_code
from ddp.backends import BACKENDS
from ddp.core.guard import GUARDS
from ddp.core.policies import POLICIES
from ddp.engine import ENGINES
from ddp.registry import Registry
from ddp.settings import known
from ddp.user_code import CodeDigest

TASK = ("model", "data")
"""The parts of the task, which do not depend on the mode and are sent to ranks."""


def enrolled(word: str) -> str:
    """Return a word of a command line. If it chooses models by files or modules, register these and put their names in
    place of them. Raise ValueError."""
    key, equals, _ = word.partition("=")
    models = texts(word) if key == "model" else []
    return key + equals + ",".join(map(own_model, models)) if any(map(user_code.is_source, models)) else word


def in_new_process(word: str) -> str:
    """Return a word for a process in which no model is registered: a model from a file is again named by its file."""
    key, _, name = str(word).partition("=")
    return f"{key}={spelt(_source(name))}" if key == "model" and _source(name) != name else str(word)


def _source(name: str) -> str:
    """Return the file of a user's model; the name itself of any other."""
    by_file = "." not in name and name in MODELS and user_code.is_file(MODELS[name])
    return MODELS[name] if by_file else name


def check_model(config: Config, words: Sequence[str]) -> None:
    """Raise ValueError if the last word that chooses a model has no effect, as a preset's `model.name` replaces it."""
    for word in [word for word in words if word.startswith("model=")][-1:]:
        name = texts(word)[0]
        if name in MODELS and MODELS[name] != MODELS.get(own_model(config.model.name)):
            why = f"a preset, or another word, sets {setting('model.name', config.model.name)}"
            raise ValueError(f"{word} has no effect, as {why}: write {setting('model.name', _source(name))} instead")


def settled(config: Config) -> Config:
    """Return the configuration with names in place of the user's files and modules, which are registered. Raise
    ValueError, also for an unknown model."""
    data = config.data if config.data.name is None else replace(config.data, name=own_data(config.data.name))
    model = known("model", own_model(config.model.name), MODELS)
    return replace(config, model=replace(config.model, name=model), data=data)


def code_of(config: Config, setup: Setup) -> tuple[CodeDigest, ...]:
    """Return the digests of the parts of a run that are not the project's. Raise ValueError for missing code."""
    recipe = setup.recipes.get(config.recipe)
    data = config.data.name or (recipe.data if recipe is not None else "")
    return tuple(
        CodeDigest(kind, name, source, user_code.digest(source)) for kind, name, source in _own_parts(config, data)
    )


def _own_parts(config: Config, data: str) -> Iterator[tuple[str, str, str]]:
    """Iterate over (kind, name, source) of the parts that are not the project's."""
    mode = config.mode
    parts: tuple[tuple[str, str | None, Registry[Any]], ...] = (
        ("model", config.model.name, MODELS),
        ("data", data, DATA),
        ("backend", mode.backend, BACKENDS),
        ("engine", mode.engine, ENGINES),
        ("policy", mode.policy, POLICIES),
        ("guard", config.policy.get("guard") if mode.policy else None, GUARDS),
    )
    for kind, name, registry in parts:
        if name is not None and name in registry and not registry.is_ours(name):
            member = registry[name]
            yield (
                kind,
                name,
                member if isinstance(member, str) else getattr(member, "module", None) or member.__module__,
            )


def saved(code: tuple[CodeDigest, ...]) -> dict[str, Any]:
    """Return the digests in the form of the configuration, under `code`; empty if all parts are the project's."""
    return {"code": {each.kind: {"source": each.source, "sha256": each.sha256} for each in code}} if code else {}


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return the end of an error message if a run's configuration now makes another cell: the parts whose code
    changed. Else empty."""
    was, today = (config.get("code") or {} for config in (before, now))
    sources = [
        part["source"] for kind, part in today.items() if was.get(kind, {}).get("sha256") not in (None, part["sha256"])
    ]
    return f": {', '.join(sources)} was changed since" if sources else ""


def named_by(config: Mapping[str, Any], kind: str, name: Any) -> Any:
    """Return the name by which another process finds a model or data set of a saved configuration: its file if it has one
    of the user's, else `name`, which is ours, a module's or an entry point's."""
    code = config.get("code")
    part = code.get(kind) if isinstance(code, dict) else None
    source = part.get("source") if isinstance(part, dict) else None
    return source if isinstance(source, str) and user_code.is_file(source) else name
