"""Imports code that is not the project's: a user's own file, or a module of an installed package.

Owns how a file is imported, in any process and from any folder, and the digest of its content. A source is the path of a
file ending in `.py`, or the name of an importable module. Knows no registry.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

SUFFIX = ".py"


def is_file(source: str) -> bool:
    """Return whether a source is the path of a file."""
    return source.endswith(SUFFIX)


class CodeDigest(NamedTuple):
    """The code that a run was planned with."""

    kind: str
    """Kind of the code: `model`, `data`."""
    name: str
    source: str
    sha256: str


def is_source(word: str) -> bool:
    """Return whether a word must be a file or module: names of members have no dots."""
    return is_file(word) or ("." in word and all(part.isidentifier() for part in word.split(".")))


def named(word: str, beside: Path) -> tuple[str, str]:
    """Return (name, source) of a user's file or module. Files and packages that Python cannot import by name are searched
    in the folder `beside`. Raises ValueError with the remedy."""
    if is_file(word):
        file = Path(os.path.abspath(beside / os.path.expanduser(word)))
        if not file.is_file():
            raise ValueError(f"{word}: there is no file {file}")
        if not file.stem.isidentifier():
            raise ValueError(f"{word}: Python cannot import a file of that name; rename it, with letters, digits and _")
        return file.stem, str(file)
    base = beside.joinpath(*word.split("."))
    for file in (base.with_name(f"{base.name}{SUFFIX}"), base / "__init__.py"):
        if file.is_file():
            if place(file) != (beside, word):
                raise ValueError(f"{word}: a folder on the way to {file} has no __init__.py; add it, or give the file")
            return word, os.path.abspath(file)
    file_of(word)
    return word, word


def place(file: Path) -> tuple[Path, str]:
    """Return the folder from which Python imports a file, and the name of its module there. For a file in a package it is
    the folder that contains the outermost package."""
    folder, names = file.parent, [] if file.stem == "__init__" else [file.stem]
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(names)


def load(source: str) -> ModuleType:
    """Import a source. The folder of a file is put first on `sys.path`, as for a script, so the file can import others from
    its folder. Raises ValueError if another module has the name of the file, or of one that it imports from its folder and
    that was imported from the folder of an earlier source; and whatever the code raises."""
    if not is_file(source):
        return importlib.import_module(source)
    digest(source)  # cache the digest of the code that is about to run
    folder, name = place(Path(source))
    _refuse_earlier(source, folder)
    known = sys.modules.get(name)
    if known is None:
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
        importlib.invalidate_caches()
        _FOLDERS.add(folder)
        known = importlib.import_module(name)
    if _path(known) != Path(source):
        raise ValueError(f"{source}: Python has another module {name}; rename the file")
    return known


_FOLDERS = set[Path]()
"""Folders of the files that were imported."""


def _path(module: ModuleType) -> Path:
    return Path(getattr(module, "__file__", None) or "")


def _refuse_earlier(source: str, folder: Path) -> None:
    """Raise ValueError if a file that `source` imports from its folder has the name of one from an earlier source's."""
    for file in _files(Path(source), folder):
        name = place(file)[1]
        known = sys.modules.get(name)
        if known is not None and _path(known) != file and _FOLDERS & {*_path(known).parents} - {folder}:
            raise ValueError(f"{source}: Python has another module {name} than {file}; rename the file")


@cache
def digest(source: str) -> str:
    """Return the sha256 of the content of a source and of everything that it imports from its own folder or package.

    The first call in a process is cached. File names are relative to that folder, so the digest does not depend on its
    location. Raises OSError, and ValueError for a module that does not exist."""
    file = file_of(source)
    folder, _ = place(file)
    content = sha256()
    for each in _files(file, folder):
        body = each.read_bytes()
        content.update(f"{each.relative_to(folder).as_posix()} {len(body)}\n".encode() + body)
    return content.hexdigest()


def file_of(source: str) -> Path:
    """Return the file of a source without importing it. Raises ValueError if there is none."""
    if is_file(source):
        return Path(source)
    try:
        spec = importlib.util.find_spec(source)
    except ImportError:
        spec = None
    if spec is None or spec.origin is None or not is_file(spec.origin):
        raise ValueError(f"{source} is no module that Python finds here; give its file, or install its package")
    return Path(spec.origin)


def _files(first: Path, folder: Path) -> list[Path]:
    """Return `first` and all files in `folder` that it imports, directly or indirectly, anywhere in their code."""
    files, waiting = {first}, [first]
    while waiting:
        file = waiting.pop()
        new = {each for name in _imported(file, folder) for each in _named(name, folder)} - files
        files |= new
        waiting += new
    return sorted(files)


def _imported(file: Path, folder: Path) -> Iterator[str]:
    """Iterate over the modules that a file imports, relative ones by their full names."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # importing the file reports the error
        return
    _, name = place(file)
    package = name.split(".") if file.stem == "__init__" else name.split(".")[:-1]
    yield ".".join(package)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *(node.module or "").split(".")]).strip(".")
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _named(name: str, folder: Path) -> Iterator[Path]:
    """Iterate over the files in `folder` that importing `name` runs: the `__init__.py` of its packages, and the module
    itself."""
    parts = [part for part in name.split(".") if part]
    for length in range(1, len(parts) + 1):
        base = folder.joinpath(*parts[:length])
        for file in (base.with_name(f"{base.name}{SUFFIX}"), base / "__init__.py"):
            if file.is_file():
                yield file
