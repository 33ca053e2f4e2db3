"""Hydra's flags on our command line: parses them and reports errors. Knows no configuration."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import NoReturn

from bench.base.usage import UsageError
from ddp.suggest import unknown

INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
FLAGS: dict[tuple[str, ...], dict[str, object]] = {
    ("--multirun", "-m"): {"action": "store_true", "help": "run a sweep: every combination of the values given"},
    ("--run", "-r"): {"action": "store_true", "help": "run one cell, which is what it does without a flag"},
    ("--cfg", "-c"): {"choices": ("job", "hydra", "all"), "help": "print the configuration and run nothing"},
    ("--resolve",): {"action": "store_true", "help": "with --cfg: print values, not references"},
    ("--package", "-p"): {"metavar": "KEY", "help": "with --cfg: print this part of it"},
    ("--info", "-i"): {"choices": INFO, "nargs": "?", "const": "all", "help": "print what Hydra knows"},
    ("--config-dir", "-cd"): {"metavar": "FOLDER", "help": "look for presets in this folder too"},
    ("--config-path", "-cp"): {"metavar": "FOLDER", "help": "look for them here in place of ours"},
    ("--config-name", "-cn"): {"metavar": "NAME", "help": "another primary configuration"},
    ("--shell-completion", "-sc"): {"action": "store_true", "help": 'in bash: eval "$(bench -sc install=bash)"'},
    ("--hydra-help",): {"action": "store_true", "help": "print Hydra's own help"},
    ("--version",): {"action": "store_true", "help": "print the version of Hydra"},
    ("--verbose", "-v"): {"action": "count", "help": "print more: ranks (-v), averages (-vv), every record (-vvv)"},
    ("--quiet",): {"action": "store_true", "help": "print less: what goes wrong, and the result"},
    ("--help", "-h"): {"action": "store_true", "help": "print this help"},
}
"""Names of a flag -> argparse's settings for it. Hydra has the same flags, except `OURS`, and expects flags before
overrides."""
OURS = ("--verbose", "--quiet")
SHOWS = {"--cfg", "-c", "--info", "-i", "--help", "-h", "--hydra-help", "--shell-completion", "-sc", "--version"}
"""Flags with which Hydra shows something and runs nothing."""
_ONE_OF = ("run", "cfg", "multirun", "info", "shell_completion")


def read(arguments: list[str], own: Sequence[str] = ()) -> tuple[argparse.Namespace, list[str]]:
    """Return the parsed arguments, with overrides in `overrides`, and the words in the order that Hydra expects. `own`:
    names of a verb's own options, which were parsed before. Raise UsageError."""
    for word in arguments:
        if word.startswith("="):
            raise UsageError(f"{word!r} has no key: write key=value, as in seed{word}")
    parser = _parser()
    options, strange = parser.parse_known_intermixed_args(arguments)
    if strange:
        names = [*own, *(name for names in FLAGS for name in names)]
        raise UsageError(unknown("option", strange[0].partition("=")[0], names))
    modes = [flag for flag in _ONE_OF if getattr(options, flag)]
    if len(modes) > 1:
        raise UsageError(f"only one of --{', --'.join(modes)} at a time")
    if options.multirun and not options.overrides:
        raise UsageError("-m alone varies nothing: say what to vary, as in -m mode=solo,nccl_cadence seed=0,1,2")
    if options.resolve and not (options.cfg or options.help):
        raise UsageError("--resolve needs --cfg, as in --cfg job --resolve")
    if options.shell_completion and [word in _completions() for word in options.overrides] != [True]:
        raise UsageError("--shell-completion needs install=SHELL or uninstall=SHELL: bash, fish or zsh")
    if options.verbose and options.quiet:
        raise UsageError("only one of --verbose, --quiet at a time")
    options.verbosity = -1 if options.quiet else min(options.verbose or 0, 3) or None
    return options, [word for names in FLAGS if names[0] not in OURS for word in _words(names[0], options)]


def _completions() -> list[str]:
    """Return what may be done about completion. `query` is the shell's own word, with the line in a variable."""
    verbs = ("install", "uninstall", *(("query",) if "COMP_LINE" in os.environ else ()))
    return [f"{verb}={shell}" for verb in verbs for shell in ("bash", "fish", "zsh")]


def _words(name: str, options: argparse.Namespace) -> list[str]:
    value = getattr(options, name.removeprefix("--").replace("-", "_"))
    return [] if value in (None, False) else [name] if value is True else [name, value]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    for names, how in FLAGS.items():
        parser.add_argument(*names, **how)  # type: ignore[arg-type]
    return parser
