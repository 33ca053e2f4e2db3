"""Modules that a registry names, imported on use: what is wrong with one, mostly a user's own, is a line with file and line.

A module is a source of `ddp.user_code`: a file of a user's own has its path for a name. Imports no torch.
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
    """A member of a registry is not what it must be; one line."""


def member(kind: str, name: str, module: str, has: str, like: type | None = None) -> Any:
    """Return what `module`, registered as the `kind` called `name`, calls `has`: a `like`. Raises Unusable."""
    found = imported(kind, name, module)
    place = _shown(origin(module) or module)
    if not hasattr(found, has):
        raise Unusable(f"{kind} {name}: {place} has no {has}{f', which must be a {like.__name__}' if like else ''}")
    it = getattr(found, has)
    if like is not None and not isinstance(it, like):
        raise Unusable(f"{kind} {name}: {place}: {has} must be a {like.__name__}, and is a {type(it).__name__}")
    return it


def imported(kind: str, name: str, module: str) -> Any:
    """Import `module`, registered as the `kind` called `name`. Raises Unusable."""
    with blamed(kind, name, module):
        return user_code.load(module)


_OURS = tuple(f"{Path(__file__).parents[1] / name}{os.sep}" for name in ("bench", "ddp"))


def is_ours(error: BaseException) -> bool:
    """Return whether the project's own code raised it: then it says all by itself."""
    return traceback.extract_tb(error.__traceback__)[-1].filename.startswith(_OURS)


@contextmanager
def blamed(kind: str, name: str, module: str, *passing: type[Exception]) -> Iterator[None]:
    """Raise Unusable for what is raised inside: it is a mistake in `module`. `passing` say all by themselves."""
    try:
        yield
    except (Unusable, *passing):  # type: ignore[misc]  # mypy knows no such tuples
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            said = f"it is registered as module {module}, and there is none; write the file, or correct its registry"
        else:
            said = f"{_place(error, module)}: {_told(error)}"
        raise Unusable(f"{kind} {name}: {said}") from error


def missing(kind: str, name: str, known: Iterable[str]) -> str:
    """Return one line that says why `name` is no `kind`: its package is broken, or nobody knows it."""
    if isinstance(known, Registry) and name in known.complete().broken:
        return broken(kind, known, name)
    return unknown(kind, name, known)


def broken(kind: str, registry: Registry[Any], name: str) -> str:
    """Return one line on what is wrong with a member of a package, with file and line."""
    source, error = registry.broken[name]
    module = source.partition(":")[0]
    try:
        with blamed(kind, name, module):
            raise error
    except Unusable as unusable:
        return str(unusable)


def sound(kind: str, registry: Registry[Any]) -> None:
    """Raise Unusable for the first member of a package that cannot be used: what all members do together lacks it."""
    for name in registry.complete().broken:
        raise Unusable(broken(kind, registry, name))


def origin(module: str) -> str | None:
    """Return the file of `module`, without importing it; None if there is none. Raises what its package raises."""
    if user_code.is_file(module):
        return module
    spec = importlib.util.find_spec(module)
    return None if spec is None else spec.origin


def _place(error: BaseException, module: str) -> str:
    """File and line: of the module itself if it had a part in it, else where it was raised."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_shown(error.filename)}:{error.lineno or 1}"
    frames = traceback.extract_tb(error.__traceback__)
    try:
        own = origin(module)
    except Exception:  # the mistake is in its package
        own = None
    if own is not None and user_code.is_file(module):
        beside = f"{user_code.place(Path(own))[0]}{os.sep}"
        mine = [frame for frame in frames if frame.filename.startswith(beside)]
        if not mine:  # it only put together what others wrote
            return _shown(own)
    else:
        mine = [frame for frame in frames if frame.filename == own]
    frame = [*frames[:1], *frames[-1:], *mine][-1]
    return f"{_shown(frame.filename)}:{frame.lineno}"


def _shown(file: str) -> str:
    """As seen from here, where it lies below."""
    path, here = Path(file), Path(os.getcwd())
    return str(path.relative_to(here)) if path.is_relative_to(here) else file


def _told(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {(text.strip() or 'no reason given').splitlines()[0]}"
