"""Turns an error of Hydra or omegaconf into one line that names the mistake and the remedy."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from bench.config.config import Choice, Config
from bench.config.overrides import PATHS, in_shell, reads
from ddp.backends import BACKENDS
from ddp.core.policies import POLICIES
from ddp.engine import ENGINES
from ddp.registries import broken, lacking
from ddp.registry import Registry
from ddp.suggest import nearest, unknown

PRESETS = ("mode", "experiment")
"""Groups that are not keys of the configuration."""


def known_keys() -> set[str]:
    """Return the keys of all configurations, and the groups."""
    settings = {f"policy.{key}" for policy in POLICIES.values() for key in inspect.signature(policy).parameters}
    return {*_keys(Config), *settings, *PRESETS}


def _keys(cls: type[Any], prefix: str = "") -> Iterator[str]:
    hints = get_type_hints(cls)
    for field in fields(cls):
        inner = hints[field.name]
        chosen = isinstance(inner, type) and issubclass(inner, Choice)
        if is_dataclass(inner):
            assert isinstance(inner, type)
            yield from (key for key in _keys(inner, f"{prefix}{field.name}.") if not (chosen and key.endswith(".name")))
        if chosen or not is_dataclass(inner):
            yield f"{prefix}{field.name}"


def complain(error: Exception, verbs: tuple[str, ...] = ()) -> str:
    """Return one line for an exception of Hydra or omegaconf. `verbs`: words that are valid in place of
    `key=value`."""
    match error:
        case OverrideParseException():
            return _unreadable(error, verbs)
        case MissingConfigException(missing_cfg_file=str(missing), options=[*options]) if options:
            group, _, name = missing.rpartition("/")
            return unusable(group, name) or unknown(group, name, options)
        case MissingMandatoryValue():
            return f"{error.full_key} is missing: choose one, as in {error.full_key}=..."
        case OmegaConfBaseException(full_key=str(key)) if "not in" in str(error):
            return _unknown_key(key)
    return _composition(error) if isinstance(error, HydraException) else _first_line(error)


def unusable(group: str, name: str) -> str | None:
    """Return why an installed package failed to add a member of a group, or which extra is missing; None if no package
    declares the member."""
    members: dict[str, Registry[Any]] = {"policy": POLICIES, "backend": BACKENDS, "engine": ENGINES}
    for kind, known in members.items():
        for part in (*known.broken, *known.absent):
            if (group == kind and name == part) or (group == "mode" and f"_{part}_" in f"_{name}_"):
                return broken(kind, known, part) if part in known.broken else lacking(kind, known, part)
    return None


def names_several(error: Exception) -> bool:
    """Tell whether Hydra refused several values for a single run."""
    return re.search(_SEVERAL, str(error)) is not None


def beyond(override: str) -> str | None:
    """Return the error for an override of a key below a key that has no keys below it, or None. Numbers may be list
    indices."""
    key, _, value = override.partition("=")
    key = key.lstrip("+~")
    if "." not in key:
        return None
    keys = known_keys()
    above = [part for part in keys if key.startswith(f"{part}.")]
    last = key.rpartition(".")[2]
    if key in keys or not above or last.isdecimal() or any(other.startswith(f"{above[0]}.") for other in keys):
        return None
    name = above[0]
    title = f"{'an' if name[0] in 'aeiou' else 'a'} {name}" if name in _BY_NAME else name
    meant = sorted(other for other in keys if other.rpartition(".")[2] == last)
    remedy = f"use {meant[0]}{value and f'={value}'}" if meant else f"{name}=... is all that can be said"
    return f"{override}: {title} has no settings of its own; {remedy}"


def nameless(override: str) -> str | None:
    """Return the error for an override of a group whose value is neither a member nor a list of members, or None."""
    key, given, _ = override.partition("=")
    if key not in GROUPS or not given:
        return None
    value = OverridesParser.create().parse_override(override).value()
    names = value.list if isinstance(value, ChoiceSweep) else value if isinstance(value, list) else [value]
    if not any(name is None or isinstance(name, int | float | list) for name in names):
        return None
    return f"{override}: what to choose has a name; leave {key} out, or see python -m bench list"


def bracketed(override: str) -> str | None:
    """Return the error for an override that gives a group a list in brackets, or None: Hydra would merge its members."""
    key, _, value = override.lstrip("+").partition("=")
    if key not in GROUPS or not value.startswith("["):
        return None
    return _at_once(key)


def check_choices(choices: Collection[str]) -> None:
    """Raise ValueError for a group of which a preset chooses several members at once. `choices`: the groups with one."""
    for group in GROUPS:
        if group not in choices:
            raise ValueError(_at_once(group))


def _at_once(group: str) -> str:
    more = "give each its own command" if group == "experiment" else "add -m for a sweep"
    return f"{group}=[...] chooses several at once: leave out the brackets, and {more}"


def nowhere(override: str) -> str | None:
    """Return the error for a search path with a missing folder, or None."""
    key, _, _ = override.partition("=")
    if key.lstrip("+") != "hydra.searchpath":
        return None
    value = OverridesParser.create().parse_override(override).value()
    for place in value if isinstance(value, list) else [value]:
        scheme, separator, rest = str(place).rpartition("://")
        if separator and scheme == "pkg":
            continue
        if scheme != "file" or not Path(rest).is_dir():
            missing = f"no folder {rest}" if scheme == "file" else f"{place} has no scheme"
            return f"{override}: {missing}; write file:///the/folder or pkg://the.package"
    return None


GROUPS = ("model", "engine", "policy", "backend", *PRESETS)
_BY_NAME = ("recipe", "engine", "backend", *PRESETS)
"""Keys whose values are names to choose from."""
_SEVERAL = r"Ambiguous value for argument '(.+)'|Sweep parameters '(.+)' requires"
_NO_LIST = "is not a ListConfig, list or tuple"
_EXPLAINED = (
    (r"Could not append to config. An item is already at '(.+)'", "{} exists already: write it without the +"),
    (r"Multiple values for (.+)\. To override", "{} is chosen already: write it without the +"),
)
"""Pattern of Hydra's message -> our message."""


def _composition(error: HydraException) -> str:
    text = str(error)
    if hit := re.search(_SEVERAL, text):
        return f"{hit[1] or hit[2]} names several values: add -m to run one after the other{_or_one(hit[1])}"
    for pattern, ours in _EXPLAINED:
        if hit := re.search(pattern, text):
            return ours.format(hit[1])
    if hit := re.search(r"Could not (?:override|append|delete from config\.)[^']*'([^']+)'", text):
        return _unknown_key(hit[1])
    if hit := re.search(r"In '(.+)': \w+ raised while composing config:\n(.+)", text):
        return f"{hit[1]}: {hit[2]}"
    if (hit := re.search(r"Error merging override (.+)", text)) and error.__cause__ is not None:
        first = _first_line(error.__cause__)
        return f"{hit[1]}: {_no_value(hit[1]) or (_listed(hit[1]) if _NO_LIST in first else first)}"
    return _first_line(error)


def _no_value(override: str) -> str | None:
    """Return what to write instead of a value for a key that has settings below it; None if it has none."""
    key, _, value = override.lstrip("+~").partition("=")
    beneath = sorted(other for other in known_keys() if other.startswith(f"{key}."))
    if not beneath:
        return None
    named = f"{key}.name"
    meant = f"{named}={value}" if named in beneath else f"{beneath[0]}=..."
    return f"{key} has settings of its own: write {meant}, or another of them"


def _listed(override: str) -> str:
    """Return how to write a single value of a key that takes a list."""
    key, _, value = override.lstrip("+~").partition("=")
    return f"{key} is a list: write '{key}=[{value}]'"


def _or_one(word: str | None) -> str:
    """Return how to write a path that contains a comma, and several loggers of one run."""
    key, _, value = (word or "").partition("=")
    if key == "logger":
        return f", or write '{key}=[{value}]' for all of them at once"
    return f", or write {in_shell(key, value)} for one path" if key in PATHS else ""


def _unknown_key(key: str) -> str:
    keys = known_keys()
    if key in keys:
        return f"{key} is no setting of the chosen {key.partition('.')[0]}; see --cfg job for those there are"
    best = nearest(key, keys)
    return f"unknown key {key!r}; " + (f"did you mean {best!r}?" if best else "see --cfg job for those there are")


def _unreadable(error: OverrideParseException, verbs: tuple[str, ...]) -> str:
    override = str(error.override)
    if "=" in override:
        key, _, value = override.partition("=")
        if set(value) & set("[](){}'\" "):
            remedy = "close its brackets and quotes, and quote it for the shell"
        else:
            remedy = f"write {in_shell(key, value)}" if reads(key, value) else "see --cfg job for the keys there are"
        return f"cannot read {override!r}: {remedy}"
    best = nearest(override, [*verbs, *known_keys()])
    hint = f"did you mean {best if best in verbs else f'{best}=...'}?" if best else "see --help"
    return f"{override!r} is neither a command nor key=value; {hint}"


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
