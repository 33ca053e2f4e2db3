"""Atomic writing: afterwards a file is either unchanged or complete, whatever happens meanwhile."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Write `text` (UTF-8) atomically; bytes of a file name that are no text as `\\udcff`. Raises OSError."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_json(path: Path, body: Any) -> None:
    """Write `body` as indented JSON atomically, and create the folder. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(body, indent=1) + "\n")


def write_bytes(path: Path, body: bytes) -> None:
    """Write `body` atomically. An existing pipe or link at `path` is replaced, not written to, except the devices and
    open files that the system lists (`is_listed`). Raises OSError."""
    if is_listed(path):
        with path.open("ab") as file:  # what the process has printed there stays
            file.write(body)
        return
    temporary = aside(path)
    try:
        temporary.write_bytes(body)
        _replace(temporary, path)
    except OSError as error:
        error.filename = str(path)  # errors of writing to an open file name no file
        error.filename2 = None
        raise
    finally:
        temporary.unlink(missing_ok=True)


def is_listed(path: Path) -> bool:
    """Return whether `path` lies among the devices and open files of the system, such as `/dev/null` and
    `/dev/stdout`: to replace one would break it for every process."""
    folder = Path(os.path.realpath(path.parent))
    return folder in (Path("/dev"), Path("/dev/fd")) or folder.is_relative_to("/proc")


def aside(path: Path) -> Path:
    """Return a hidden name beside `path` that no other process uses, on any host."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")


def _replace(source: Path, path: Path) -> None:
    """Rename a file over another; if the file system cannot do that, remove the target first."""
    try:
        os.replace(source, path)
    except FileExistsError:
        path.unlink()
        os.rename(source, path)
