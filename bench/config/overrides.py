"""Overrides as Hydra can read them: our names for keys, the home folder for `~`, quotes for text. Knows no configuration."""

from __future__ import annotations

import os
import shlex

from bench.base.usage import UsageError

ALSO_SAID = {"+experiment": "experiment", "data_dir": "data.dir"}
"""Key -> ours. The group is in the defaults, so `+experiment=ci` would append a second one; the field says `data_dir`."""
ALL = "glob(*)"
"""Hydra's word for every member of a group."""
GROUPS = ("model", "mode", "policy", "backend", "engine")
"""Groups of which `all` may be asked for."""
PATHS = ("data.dir", "data.path", "output", "resume")
"""Keys of files and folders: no brackets mean anything in them, and `~` is the user's own folder."""


def in_our_words(override: str) -> str:
    """Return an override of a key of `ALSO_SAID` as one of ours, `all` of a group as what Hydra calls it; any other word as
    it is."""
    key, equals, value = override.partition("=")
    return f"{ALSO_SAID.get(key, key)}{equals}{ALL if key in GROUPS and value == 'all' else value}"


def of_all(override: str) -> bool:
    """Return whether an override means all members of a group, which makes it a sweep."""
    return override.endswith(f"={ALL}")


def readable(override: str) -> str:
    """Return an override with its value in quotes where Hydra would refuse it and it can only be text; else as it is.

    Raise UsageError for a path that may as well be several."""
    key, _, value = override.partition("=")
    path = key.lstrip("+") in PATHS
    home = path and value.startswith("~")
    if not value or value[0] in "'\"" or (_reads(override) and not home):
        return override
    text = os.path.expanduser(value) if home else value
    if not reads(key, text) or (not path and set(value) & set(",[](){}")):
        return override  # for Hydra to refuse
    if "," in value:
        several = f"{key}={','.join(map(quoted, map(os.path.expanduser, value.split(','))))}"
        remedy = f"write {in_shell(key, text)} for one path, {_shelled(several)} for several"
        raise UsageError(f"cannot read {override!r}: {remedy}")
    return f"{key}={quoted(text)}"


def quoted(text: str) -> str:
    """Quote text, so that Hydra reads it whatever is in it."""
    from hydra.core.override_parser.types import Quote, QuotedString  # takes its time, and few texts need quotes

    return str(QuotedString(text, Quote.single).with_quotes())


def in_shell(key: str, text: str) -> str:
    """Return the override that means this one text, as it is typed."""
    return _shelled(f"{key}={quoted(text)}")


def _shelled(override: str) -> str:
    key, _, value = override.partition("=")
    return shlex.quote(override) if set(value) & set('"$`\\!') else f'{key}="{value}"'


def reads(key: str, text: str) -> bool:
    """Tell whether Hydra has a place for this text, in quotes, under such a key."""
    return _reads(f"{key}={quoted(text)}")


def _reads(override: str) -> bool:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        OverridesParser.create().parse_override(override)
    except HydraException:
        return False
    return True
