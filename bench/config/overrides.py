"""Rewrites overrides so that Hydra can read them: aliases of keys, the home folder for `~`, quotes around text. Knows
no configuration."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from bench.base.usage import UsageError

ALSO_SAID = {"+experiment": "experiment", "data_dir": "data.dir"}
"""Alias -> key. The group is in the defaults list, so that `+experiment=ci` would append it twice; `data_dir` is
another common name."""
ALL = "glob(*)"
"""Hydra's word for every member of a group."""
GROUPS = ("model", "mode", "policy", "backend", "engine")
"""Groups that accept `all`."""
PATHS = ("data.dir", "data.path", "output", "resume")
"""Keys of files and folders: brackets in their values are plain text, and `~` is the user's home folder."""
_PLAIN = re.compile(r"(?:\.{0,2}/|[A-Za-z_])[\w./-]*|\d+@\d+:[\w*.]+", re.ASCII)
"""Words, paths and faults that need no quotes; for Hydra most other characters have a meaning."""
_MEANT_OTHERWISE = {"null", "true", "false", "inf", "nan"}
_REFERENCE = re.compile(r"(\\*)\$\{")
"""Pattern of a reference to another key, which more backslashes make text."""


def in_our_words(override: str) -> str:
    """Return an override with an alias of `ALSO_SAID` under its key, and `all` of a group as Hydra's glob; any other
    word unchanged."""
    key, equals, value = override.partition("=")
    return f"{ALSO_SAID.get(key, key)}{equals}{ALL if key in GROUPS and value == 'all' else value}"


def of_all(override: str) -> bool:
    """Return whether an override means all members of a group, which makes it a sweep."""
    return override.endswith(f"={ALL}")


def readable(override: str) -> str:
    """Return an override with its value in quotes if Hydra would refuse the value and it can only be text, or would read
    a path as a number; else unchanged.

    A path in quotes that begins with `~` is a folder of that name, `./~`. Raise UsageError for a path that could also be a
    list of paths."""
    key, _, value = override.partition("=")
    path = key.lstrip("+") in PATHS
    home = path and value.startswith("~")
    if path and value.startswith(("'~", '"~')):
        return f"{key}={value[0]}./{value[1:]}"
    if not value or value[0] in "'\"" or (_reads(override) and not home and not (path and _reads_number(override))):
        return override
    text = os.path.expanduser(value) if home else value
    if not reads(key, text) or (not path and set(value) & set(",[](){}")):
        return override  # for Hydra to refuse
    if "," in value:
        several = f"{key}={','.join(map(quoted, map(os.path.expanduser, value.split(','))))}"
        remedy = f"write {in_shell(key, text)} for one path, {_shelled(several)} for several"
        raise UsageError(f"cannot read {override!r}: {remedy}")
    return f"{key}={quoted(text)}"


def for_each_point(overrides: Sequence[str]) -> tuple[str, ...]:
    """Return the overrides of a sweep with each fixed setting of a policy as a choice of one value. Hydra sets fixed values
    before it chooses the mode of a point, when the policy is the default one and may lack the setting."""
    return tuple(
        f"{key}=choice({value})" if key.startswith("policy.") and value and _fixed(word) else word
        for word in overrides
        for key, _, value in (word.partition("="),)
    )


def _fixed(override: str) -> bool:
    return _reads(override) and not _parsed(override).is_sweep_override()


def quoted(text: str) -> str:
    """Quote text, so that Hydra reads any characters in it."""
    from hydra.core.override_parser.types import Quote, QuotedString  # takes its time, and few texts need quotes

    return str(QuotedString(text, Quote.single).with_quotes())


def setting(key: str, value: Any) -> str:
    """Return `key=value` as a word for the shell, from which Hydra reads exactly this value."""
    return shlex.quote(f"{key}={spelt(value)}")


def spelt(value: Any) -> str:
    """Return a value in Hydra's syntax: quotes text that Hydra would interpret, and keeps all digits of numbers."""
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and value.lower() not in _MEANT_OTHERWISE
        return value if plain else quoted(_REFERENCE.sub(r"\1\1\\${", value))
    if isinstance(value, list | tuple):
        return f"[{','.join(map(spelt, value))}]"
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return json.dumps(value, separators=(",", ":"))


def in_shell(key: str, text: str) -> str:
    """Return the override that sets `key` to this text, as typed in a shell."""
    return _shelled(f"{key}={quoted(text)}")


def _shelled(override: str) -> str:
    key, _, value = override.partition("=")
    return shlex.quote(override) if set(value) & set('"$`\\!') else f'{key}="{value}"'


def reads(key: str, text: str) -> bool:
    """Tell whether Hydra can parse this text, in quotes, as the value of `key`."""
    return _reads(f"{key}={quoted(text)}")


def _reads(override: str) -> bool:
    from hydra.errors import HydraException

    try:
        _parsed(override)
    except HydraException:
        return False
    return True


def _reads_number(override: str) -> bool:
    """Return whether Hydra reads the value as a number or a truth value: 2026_11_29 as 20261129."""
    return isinstance(_parsed(override).value(), int | float)


def texts(override: str) -> list[str]:
    """Return the texts that an override chooses, one or several, without their quotes. Commas within quotes separate
    nothing."""
    from hydra.core.override_parser.types import QuotedString
    from hydra.errors import HydraException

    value = override.partition("=")[2]
    if set(value) & set("'\""):
        with suppress(HydraException):  # such as a glob, which is of names
            parsed = _parsed(override)
            known = parsed.sweep_iterator() if parsed.is_discrete_sweep() else [parsed.value()]
            return [each.text if isinstance(each, QuotedString) else str(each) for each in known]
    return [each.strip("'\" ") for each in value.split(",")]


def _parsed(override: str) -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create().parse_override(override)
