"""A cache of what the checks derive from the records of each run, in the user's cache folder: a report reads the records
only of runs that are new or changed.

Only reports use it: `bench validate` derives everything anew. The name of a cache file is the digest of all that its
values follow from: path and content of the run's folder, the project's source, and its libraries. A run that is refused
leaves nothing here, so it is read again. Nothing is cached beside runs, so that a copied tree brings no values.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from hashlib import file_digest, sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import msgspec

from bench.base.paths import CONF, PACKAGE, ROOT
from bench.base.writing import write_bytes
from bench.results.runfolder import LOG, Run
from bench.validate.evidence.derivation import Derivation
from ddp import regular_files
from ddp.registry import extended

T = TypeVar("T")
MOST = 4096
"""Most runs in the cache; the latest stay."""
ENDING = ".values"
UNREAD = ("audit", "timeline.csv", "timeline.html", "timeline.json", "timeline.png", LOG)
"""Files of a run folder that are left out of the digest, as no verdict follows from them."""
LIBRARIES = ("numpy", "scipy", "msgspec", "pydantic")
SOURCES = (PACKAGE, ROOT / "ddp", CONF, (PACKAGE / "models").resolve())
OURS = "bench.validate."
"""Only values of these modules are cached: others have sources that the digest leaves out."""
LEGIBLE = "legible"
_encoder, _decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(dict[str, Any])


@contextmanager
def cached() -> Iterator[Derivation]:
    """Yield a derivation with the values of earlier reports; at the end, add the new ones to the cache."""
    try:
        folder()
        code = "" if extended() else _code()
    except (OSError, RuntimeError):  # or nobody has a home
        code = ""
    if not code:
        yield Derivation()
        return
    derivation = CachedDerivation(code)
    yield derivation
    derivation.save()


def folder() -> Path:
    """Return the cache folder, which only this user can read."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "elche-bench" / "runs"


class CachedDerivation(Derivation):
    """Computes a value only if it is not in the cache. `code`: digest of the source that computes values."""

    def __init__(self, code: str) -> None:
        self._code = code
        self._names: dict[Path, str] = {}
        """Path of a run -> name of its cache file; empty: the run cannot be read, and nothing of it is cached."""
        self._values: dict[Path, dict[str, Any]] = {}
        self._new: dict[Path, Run] = {}

    def legible(self, run: Run) -> None:
        """Raise ValueError if the checks cannot rely on the run's folder; those that they can rely on are cached."""
        if LEGIBLE not in self._kept(run):
            super().legible(run)
            self._keep(run, LEGIBLE, True)

    def value(self, function: Callable[..., T], run: Run, *more: Any, lost: bool = False) -> T | None:
        """Return the value as `Derivation.value` does, if need be from the cache."""
        if not function.__module__.startswith(OURS):
            return super().value(function, run, *more, lost=lost)
        name = f"{function.__module__}.{function.__qualname__} {lost} {sha256(repr(more).encode()).hexdigest()}"
        with suppress(KeyError, msgspec.ValidationError):
            kept: T | None = msgspec.convert(self._kept(run)[name], _type(function))
            return kept
        anew = super().value(function, run, *more, lost=lost)
        self._keep(run, name, anew)
        return anew

    def save(self) -> None:
        """Write the new values of all runs that have not changed since their digest was taken."""
        with suppress(OSError):
            for path, run in self._new.items():
                name = self._names[path]
                if name and name == self._name(run):
                    folder().mkdir(parents=True, exist_ok=True, mode=0o700)
                    write_bytes(folder() / name, _encoder.encode(self._values[path]))
            if self._new:
                _remove_oldest()

    def _kept(self, run: Run) -> dict[str, Any]:
        """Return the values of a run by name."""
        if run.path not in self._values:
            self._names[run.path], self._values[run.path] = self._name(run), {}
            with suppress(OSError, msgspec.MsgspecError):
                if self._names[run.path]:
                    body = regular_files.content(folder() / self._names[run.path])
                    self._values[run.path] = _decoder.decode(body)
        return self._values[run.path]

    def _keep(self, run: Run, name: str, value: Any) -> None:
        self._kept(run)[name] = value
        self._new[run.path] = run

    def _name(self, run: Run) -> str:
        """Return the name of the cache file: the digest of the run as read, of its files, and of the code."""
        total = sha256()
        about = (self._code, str(run.path.absolute()), run.metrics.model_dump_json(), repr(run.config))
        try:
            for text in about:
                total.update(sha256(text.encode(errors="surrogateescape")).digest())
            _add(total, (run.path,), UNREAD)
        except OSError:
            return ""
        return f"{total.hexdigest()}{ENDING}"


@lru_cache(maxsize=256)
def _type(function: Callable[..., Any]) -> Any:
    """Return the type of a function's values, or None for runs without records."""
    return get_type_hints(function)["return"] | None


def _code() -> str:
    """Return the digest of the project's source and libraries. Raises OSError."""
    total = sha256(repr([*map(version, LIBRARIES), sys.version]).encode())
    _add(total, SOURCES)
    return total.hexdigest()


def _add(total: Any, roots: Iterable[Path], without: Collection[str] = ("__pycache__",)) -> None:
    """Add the names and contents of all files below folders to a digest. Raises OSError."""
    for path in _files(roots, without):
        total.update(sha256(os.fsencode(path)).digest())
        with regular_files.opened(path, regular_files.RECORDS) as file:
            total.update(file_digest(file, sha256).digest())


def _files(roots: Iterable[Path], without: Collection[str]) -> Iterator[Path]:
    """Yield the files below folders in a fixed order, but for the names `without`. Raises OSError for a folder that
    cannot be read."""
    for root in roots:
        unread: list[OSError] = []
        for place, folders, names in regular_files.walk(root, unread):
            folders[:] = sorted(name for name in folders if name not in without)
            yield from (place / name for name in sorted(names) if name not in without)
        if unread:
            raise unread[0]


def _remove_oldest() -> None:
    every = sorted(folder().glob(f"*{ENDING}"), key=lambda file: file.stat().st_mtime)
    for old in every[:-MOST]:
        old.unlink(missing_ok=True)
