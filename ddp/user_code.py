"""Code that is not the project's: a file of a user's own, or a module of an installed package.

Owns how a file is imported, in any process and from any folder, and the digest that names its content. A source is the path
of a file, which ends in `.py`, or the name of a module that Python finds by itself. Knows no registry.
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
    """Which code a run was planned with."""

    kind: str
    """Of what: `model`, `data`."""
    name: str
    source: str
    sha256: str


def is_source(word: str) -> bool:
    """Return whether a word can only mean a file or module: names of members have no dots."""
    return is_file(word) or ("." in word and all(part.isidentifier() for part in word.split(".")))


def named(word: str, beside: Path) -> tuple[str, str]:
    """Return the name and the source of what a user calls by a file, or by a module. Files and packages that Python does not
    find by itself are looked for in the folder `beside`. Raises ValueError with the remedy."""
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
    """Return the folder from which Python imports a file, and the name of its module there: of a file in a package, the
    folder that the outermost package is in."""
    folder, names = file.parent, [] if file.stem == "__init__" else [file.stem]
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(names)


def load(source: str) -> ModuleType:
    """Import a source. The folder of a file comes first on Python's path, as of a script, so that it may import others that
    lie beside it. Raises ValueError for a file whose name another module has; whatever the code raises."""
    if not is_file(source):
        return importlib.import_module(source)
    digest(source)  # of what is about to be run
    folder, name = place(Path(source))
    known = sys.modules.get(name)
    if known is None:
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
        importlib.invalidate_caches()
        known = importlib.import_module(name)
    if Path(getattr(known, "__file__", None) or "") != Path(source):
        raise ValueError(f"{source}: Python has another module {name}; rename the file")
    return known


@cache
def digest(source: str) -> str:
    """Return the sha256 of the content of a source and of all that it imports from its own folder or package.

    It is that of the first call in this process. Names are counted from that folder, so it is the same wherever that lies.
    Raises OSError, and ValueError for a module that is not there."""
    file = file_of(source)
    folder, _ = place(file)
    content = sha256()
    for each in _files(file, folder):
        body = each.read_bytes()
        content.update(f"{each.relative_to(folder).as_posix()} {len(body)}\n".encode() + body)
    return content.hexdigest()


def file_of(source: str) -> Path:
    """Return the file of a source, without importing it. Raises ValueError where there is none."""
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
    """Return the files that `first` comes to import from `folder`, wherever in them the import stands."""
    found, waiting = {first}, [first]
    while waiting:
        file = waiting.pop()
        new = {each for name in _imported(file, folder) for each in _named(name, folder)} - found
        found |= new
        waiting += new
    return sorted(found)


def _imported(file: Path, folder: Path) -> Iterator[str]:
    """Iterate over the modules that a file names, relative ones by their full names."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # who imports it learns why
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
    """Iterate over the files in `folder` that importing `name` runs: packages on the way, and the module itself."""
    parts = [part for part in name.split(".") if part]
    for length in range(1, len(parts) + 1):
        base = folder.joinpath(*parts[:length])
        for file in (base.with_name(f"{base.name}{SUFFIX}"), base / "__init__.py"):
            if file.is_file():
                yield file
