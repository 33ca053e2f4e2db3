"""The verb `list`: the members of each registry and group, with a line on each. Imports torch only for recipes, whose
modules need it."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from typing import Any

from bench.base.number_format import plural
from bench.base.paths import CONF, experiments
from bench.config.launch_settings import LAUNCHERS
from bench.loggers import LOGGERS
from bench.models import MODELS, load
from bench.models.data import DATA
from ddp import regular_files
from ddp.backends import BACKENDS
from ddp.core.guard import GUARDS
from ddp.core.policies import POLICIES
from ddp.engine import ENGINES
from ddp.engine.modes import modes
from ddp.registries import Unusable, blamed, broken, origin
from ddp.registry import Registry
from ddp.suggest import unknown

_ENDS = (".", "!", "?")


def presets(folder: Path | None = None) -> dict[str, str]:
    """Return experiment -> its comment, including the experiments in a user's `folder`."""
    comments: dict[str, str] = {}
    for name, file in experiments(CONF, folder).items():
        lines = file.read_text(encoding="utf-8").splitlines()
        comment = [line.lstrip("# ") for line in lines if line.startswith("#") and "@package" not in line]
        comments[name] = _sentences("\n".join(comment))
    return comments


def _summaries(kind: str, registry: Registry[Any], source: Callable[[Any], str] = str) -> dict[str, str]:
    """Return the first line of the docstring of each member's module, read without an import; for a broken member,
    what is wrong. `source`: returns the module of a member."""
    lines: dict[str, str] = {}
    for name, module in [(name, source(entry)) for name, entry in registry.items()]:
        try:
            with blamed(kind, name, module):
                file = origin(module)
                if file is None:
                    raise ModuleNotFoundError(name=module)
                lines[name] = _summary(ast.get_docstring(ast.parse(Path(file).read_bytes(), file)) or "", name)
        except Unusable as error:
            lines[name] = f"cannot be used: {error}"
    return lines | _broken(kind, registry)


def _broken(kind: str, registry: Registry[Any]) -> dict[str, str]:
    """Return member -> what is wrong, for members that an installed package failed to add."""
    return {name: f"cannot be used: {broken(kind, registry, name)}" for name in registry.complete().broken}


def _here(name: str) -> dict[str, str]:
    """Return the files of the current folder that define `name`, each with its summary, read without an import."""
    lines: dict[str, str] = {}
    for file in sorted(Path().glob("*.py")):
        with suppress(OSError, SyntaxError, ValueError):
            body = regular_files.content(file) if file.stat().st_size < MOST_BYTES else b""
            tree = ast.parse(body) if name.encode() in body else ast.Module([], [])
            targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                lines[file.name] = _summary(ast.get_docstring(tree) or "", file.stem)
    return lines


def _functions(kind: str, registry: Registry[Any]) -> dict[str, str]:
    """Return the first line of the docstring of the module of each function or class."""
    about = {name: _summary(inspect.getdoc(inspect.getmodule(it)) or "", name) for name, it in registry.items()}
    return about | _broken(kind, registry)


def _checks() -> dict[str, str]:
    from bench.validate.checks import CHECKS

    return _functions("check", CHECKS)


def _sections() -> dict[str, str]:
    from bench.report.sections import SECTIONS

    return _functions("section", SECTIONS)


def _policies() -> dict[str, str]:
    lines: dict[str, str] = {}
    for name, policy in POLICIES.items():
        settings = ", ".join(f"{p.name}={p.default}" for p in inspect.signature(policy).parameters.values())
        about = _summary(inspect.getdoc(inspect.getmodule(policy)) or "", name)
        lines[name] = f"{about} {f'[{settings}]' if settings else ''}".rstrip()
    return lines | _broken("policy", POLICIES)


def _modes() -> dict[str, str]:
    """Return the summaries of each mode's parts, one sentence a part. Leaves out the engine that all pairs of policy
    and backend share."""
    policies = {name: inspect.getdoc(inspect.getmodule(policy)) or "" for name, policy in POLICIES.items()}
    backends, engines = GROUPS["backends"](), GROUPS["engines"]()
    lines: dict[str, str] = {}
    for name, mode in modes().items():
        parts = [engines[mode.engine]] if mode.backend is None else []
        parts += [_summary(policies[mode.policy], mode.policy)] if mode.policy and mode.policy in name else []
        parts += [backends[mode.backend]] if mode.backend is not None else []
        lines[name] = " ".join(_first_sentence(part) for part in parts)
    return lines


def _first_sentence(text: str) -> str:
    sentence = re.split(r"(?<=[.!?])\s", text, maxsplit=1)[0]
    return sentence[:1].upper() + sentence[1:]


def _summary(text: str, name: str) -> str:
    """Return the sentence without `name`, with which some docstrings begin."""
    return _sentences(text.strip().removeprefix(f"`{name}`: "))


def _sentences(text: str) -> str:
    """Return the first line of a text on one line, continued to the end of its last sentence."""
    first, _, rest = text.partition("\n\n")[0].partition("\n")
    if first.endswith(_ENDS) or not rest:
        return first
    end = re.search(r"[.!?](?=\s|$)", rest)
    return f"{first} {' '.join(rest[: end.end() if end else None].split())}"


def _recipes() -> dict[str, str]:
    lines: dict[str, str] = {}
    for model in MODELS:
        try:
            setup = load(model)
        except Unusable as error:
            lines[model] = f"cannot be used: {error}"
            continue
        for name, recipe in setup.recipes.items():
            lines[f"{model}: {name}"] = (
                f"{recipe.data}, {plural(recipe.epochs, 'epoch')} of batches of {recipe.batch_size}, lr {recipe.lr:g}; "
                f"{setup.metric} {recipe.target:g} expected"
            )
    return lines


def _launchers() -> dict[str, str]:
    """Return launcher -> what it does, and its settings with their defaults."""
    lines: dict[str, str] = {}
    for name, kind in LAUNCHERS.items():
        settings = ", ".join(f"{each.name}={str(each.default).lower()}" for each in fields(kind))
        lines[name] = f"{_summary(inspect.getdoc(kind) or '', name)} [{settings}]"
    return lines


GROUPS: dict[str, Callable[[], dict[str, str]]] = {
    "models": lambda: _summaries("model", MODELS) | _here("SETUP"),
    "modes": _modes,
    "policies": _policies,
    "backends": lambda: _summaries("backend", BACKENDS, attrgetter("module")),
    "engines": lambda: _summaries("engine", ENGINES, attrgetter("module")),
    "loggers": lambda: _summaries("logger", LOGGERS),
    "launch": _launchers,
    "experiments": presets,
    "data": lambda: _summaries("data set", DATA, attrgetter("module")) | _here("ORIGIN"),
    "guards": lambda: _functions("guard", GUARDS),
    "checks": _checks,
    "sections": _sections,
    "recipes": _recipes,
}
"""What `list` can show -> function that returns its names with a description each."""
HEAVY = ("checks", "sections", "recipes")
"""Groups shown only if named on the command line, as they import pandas or torch."""
MOST_BYTES = 1 << 20
"""Largest file that is read in search of a model or data set."""


def show(group: str | None, folder: Path | None = None) -> None:
    """Print one group, or all groups but the heavy ones, including the experiments in a user's `folder`. Raise
    ValueError for an unknown group."""
    from tabulate import tabulate  # not for `--help`

    groups = GROUPS | {"experiments": lambda: presets(folder)}
    if group is not None and group not in GROUPS:
        raise ValueError(unknown("group", group, GROUPS))
    for name in [group] if group else [name for name in GROUPS if name not in HEAVY]:
        print(f"{name}:")
        print(tabulate([(f"  {member}", about) for member, about in groups[name]().items()], tablefmt="plain"))
        print()
    if group is None:
        print("Also:", *(f"python -m bench list {name}" for name in HEAVY), sep="\n  ")
