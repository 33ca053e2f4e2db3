"""The meaning of each configuration key: the docstrings under the fields of its dataclasses, which are the only
source."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, get_type_hints

from bench.config.config import Choice, Config
from bench.config.launch_settings import LAUNCHERS, WORD
from ddp.core.policies import POLICIES


@dataclass(frozen=True)
class KeyDoc:
    """A key, as a user sets it."""

    key: str
    kind: str
    """Its type: `float`, `list[int]`, `name` of a member of a group."""
    default: str
    text: str
    """Its meaning, with unit and values."""


def key_docs() -> Iterator[KeyDoc]:
    """Iterate over all keys, including policies' settings, in the order of the configuration."""
    for doc in _of(Config, ""):
        if doc.key == "policy":
            yield doc
            yield from _of_policies()
        else:
            yield doc


def launch_docs(name: str) -> Iterator[KeyDoc]:
    """Iterate over the settings of `launch=name`."""
    yield from _of(LAUNCHERS[name], f"{WORD}.")


def _of_policies() -> Iterator[KeyDoc]:
    """Iterate over the settings of all policies; for a shared setting, the default of the first policy and the
    policies' names."""
    docs = [(name, doc) for name, policy in POLICIES.items() for doc in _of(policy, "policy.")]
    for key in dict.fromkeys(doc.key for _, doc in docs):
        doc = next(doc for _, doc in docs if doc.key == key)
        whose = ", ".join(name for name, other in docs if other.key == key)
        yield KeyDoc(doc.key, doc.kind, doc.default, f"{doc.text} Of {whose}.")


def _of(cls: Any, prefix: str) -> Iterator[KeyDoc]:
    hints: dict[str, Any] = get_type_hints(cls)
    texts: dict[str, str] = _texts(cls)
    for each in fields(cls):
        hint, name = hints[each.name], f"{prefix}{each.name}"
        nested = isinstance(hint, type) and is_dataclass(hint)
        if not nested or issubclass(hint, Choice):
            yield KeyDoc(name, "name" if nested else _kind(str(each.type)), _default(each), texts.get(each.name, ""))
        if nested:
            yield from (
                doc for doc in _of(hint, f"{name}.") if not (issubclass(hint, Choice) and doc.key == f"{name}.name")
            )


def _kind(annotation: str) -> str:
    """Return a type in a user's words."""
    for ours, theirs in (("Any", "name"), ("tuple[float, ...]", "list[float]"), (" | None", ""), ("str", "text")):
        annotation = annotation.replace(ours, theirs)
    return annotation


def _default(each: Field[Any]) -> str:
    value = each.default if each.default_factory is MISSING else each.default_factory()
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


@cache
def _texts(cls: Any) -> dict[str, str]:
    """Return field -> its docstring, for a class and its bases."""
    texts: dict[str, str] = {}
    bases: list[Any] = [base for base in reversed(cls.__mro__) if is_dataclass(base)]
    for base in bases:
        file = inspect.getsourcefile(base)
        if file is None:
            continue
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
        body = next(
            node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == base.__name__
        )
        for node, after in pairwise(body):
            match node, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    texts[name] = " ".join(text.split())
    return texts
