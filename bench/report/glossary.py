"""Explanations of the names of ways of training, taken from the docstrings of their modules; each name of a page
once."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

from bench.report.blocks import plain
from ddp.backends import BACKENDS
from ddp.core.policies import POLICIES
from ddp.engine import ENGINES
from ddp.engine.modes import PAIRING, modes
from ddp.registries import Unusable, origin


def glossary(names: Iterable[str]) -> dict[str, str]:
    """Return part of a name (`sync`, `cpu`, `zero1`) -> its meaning, one sentence without its full stop, in the order
    of the registries. Unknown modes are left out."""
    known = modes()
    chosen = [known[name] for name in names if name in known]
    policies = {mode.policy for mode in chosen if mode.policy and mode.policy in mode.name}
    backends = {mode.backend for mode in chosen if mode.backend}
    engines = {mode.engine for mode in chosen if mode.engine != PAIRING and not ENGINES[mode.engine].one_rank}
    words = {name: policy_words(name) for name in POLICIES if name in policies}
    words |= {name: _of_file(BACKENDS[name].module) for name in BACKENDS if name in backends}
    words |= {name: _of_file(ENGINES[name].module) for name in ENGINES if name in engines}
    return {name: text for name, text in words.items() if text}


def meaning(mode: str) -> str:
    """Return the meaning of a mode in a sentence or two; empty if it is unknown."""
    sentences = [f"{text[:1].upper()}{text[1:]}." for text in glossary([mode]).values()]
    return " ".join(sentences)


def paragraph(names: Iterable[str]) -> str:
    """Return the glossary as one text with markup; empty if it has no entries."""
    parts = [f"*{plain(name)}*: {plain(text)}" for name, text in glossary(names).items()]
    return f"Names: {'; '.join(parts)}." if parts else ""


def policy_words(name: str) -> str:
    """Return the first sentence of a policy's module docstring."""
    return _sentence(inspect.getdoc(inspect.getmodule(POLICIES[name])) or "")


@cache
def _of_file(module: str) -> str:
    with suppress(OSError, SyntaxError, ValueError, ImportError, Unusable):
        file = origin(module)
        return "" if file is None else _sentence(ast.get_docstring(ast.parse(Path(file).read_bytes())) or "")
    return ""


def _sentence(text: str) -> str:
    """Return the first sentence of a docstring, without the leading name and the full stop."""
    first = text.partition("\n\n")[0].removeprefix("`").partition("`: ")
    words = " ".join((first[2] or first[0]).split())
    return re.split(r"[.!?:](?=\s|$)", words, maxsplit=1)[0]
