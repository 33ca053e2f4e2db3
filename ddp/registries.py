"""Imports the modules named by a registry, on first use, and reports a mistake in one of them (mostly the user's own) with
its file and line.

A module is a source as in `ddp.user_code`: a name, or the path of a user's own file. Imports no torch.
"""

from __future__ import annotations

import importlib.util
import os
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ddp import user_code
from ddp.registry import Registry
from ddp.suggest import unknown


class Unusable(ValueError):
    """A member of a registry has the wrong type or cannot be imported; the message is one line."""


def member(kind: str, name: str, module: str, has: str, like: type | None = None) -> Any:
    """Return the attribute `has` of `module`, which is registered as the `kind` called `name`. Raises Unusable if it is
    missing or no instance of `like`."""
    loaded = imported(kind, name, module)
    place = _shown(origin(module) or module)
    if not hasattr(loaded, has):
        raise Unusable(f"{kind} {name}: {place} has no {has}{f', which must be a {like.__name__}' if like else ''}")
    value = getattr(loaded, has)
    if like is not None and not isinstance(value, like):
        raise Unusable(f"{kind} {name}: {place}: {has} must be a {like.__name__}, and is a {type(value).__name__}")
    return value


def imported(kind: str, name: str, module: str) -> Any:
    """Import `module`, registered as the `kind` called `name`. Raises Unusable."""
    with blamed(kind, name, module):
        return user_code.load(module)


_OURS = tuple(f"{Path(__file__).parents[1] / name}{os.sep}" for name in ("bench", "ddp"))


def is_ours(error: BaseException) -> bool:
    """Return whether the project's own code raised `error`: its message then needs no file and line."""
    return traceback.extract_tb(error.__traceback__)[-1].filename.startswith(_OURS)


@contextmanager
def blamed(kind: str, name: str, module: str, *passing: type[Exception]) -> Iterator[None]:
    """Raise Unusable for an exception in this block, which is then reported as a mistake in `module`. Exceptions of the
    types `passing` are raised unchanged."""
    try:
        yield
    except (Unusable, KeyboardInterrupt, *passing):  # type: ignore[misc]  # mypy does not support this tuple
        raise
    except BaseException as error:  # `SystemExit`, or the user's own
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            mistake = f"it is registered as module {module}, and there is none; write the file, or correct its registry"
        else:
            mistake = f"{place_of(error, module)}: {_message(error)}"
        raise Unusable(f"{kind} {name}: {mistake}") from error


def missing(kind: str, name: str, known: Iterable[str]) -> str:
    """Return one line that says why there is no `kind` called `name`: its package is broken, or the name is unknown."""
    if isinstance(known, Registry) and name in known.complete().broken:
        return broken(kind, known, name)
    if isinstance(known, Registry) and name in known.absent:
        return lacking(kind, known, name)
    return unknown(kind, name, known)


def lacking(kind: str, registry: Registry[Any], name: str) -> str:
    """Return one line about a member whose extra is not installed."""
    extra = registry.absent[name]
    return f"{kind} {name} needs {extra}, which is not installed: pip install 'elche-bench[{extra}]'"


def broken(kind: str, registry: Registry[Any], name: str) -> str:
    """Return one line about a broken member of a package, with file and line."""
    source, error = registry.broken[name]
    module = source.partition(":")[0]
    try:
        with blamed(kind, name, module):
            raise error
    except Unusable as unusable:
        return str(unusable)


def sound(kind: str, registry: Registry[Any]) -> None:
    """Raise Unusable for the first broken member of a package, because work on all members would be incomplete without
    it."""
    for name in registry.complete().broken:
        raise Unusable(broken(kind, registry, name))


def origin(module: str) -> str | None:
    """Return the file of `module` without importing it; None if there is none. Raises the errors of its parent package."""
    if user_code.is_file(module):
        return module
    spec = importlib.util.find_spec(module)
    return None if spec is None else spec.origin


def place_of(error: BaseException, module: str) -> str:
    """Return the file and line of an error: in the module itself if it is in the traceback, else where it was raised."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_shown(error.filename)}:{error.lineno or 1}"
    frames = traceback.extract_tb(error.__traceback__)
    try:
        own = origin(module)
    except Exception:  # its parent package raised it
        own = None
    if own is not None and user_code.is_file(module):
        beside = f"{user_code.place(Path(own))[0]}{os.sep}"
        mine = [frame for frame in frames if frame.filename.startswith(beside)]
        if not mine:  # no code of the user's folder is in the traceback
            return _shown(own)
    else:
        mine = [frame for frame in frames if frame.filename == own]
    frame = [*frames[:1], *frames[-1:], *mine][-1]
    return f"{_shown(frame.filename)}:{frame.lineno}"


def _shown(file: str) -> str:
    """Return a file relative to the current folder if it is inside of that."""
    path, here = Path(file), Path(os.getcwd())
    return str(path.relative_to(here)) if path.is_relative_to(here) else file


def _message(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {(text.strip() or 'no reason given').splitlines()[0]}"
