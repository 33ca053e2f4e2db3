"""What may lie where a file should be: each of these keeps a careless reader for ever, or fills its memory."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.mkdir()


def listener(path: Path) -> None:
    parent = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{parent}/{path.name}")  # the path itself may be too long for a socket
    os.close(parent)


def shut(path: Path) -> None:
    path.touch()
    path.chmod(0)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


KINDS: dict[str, Callable[[Path], None]] = {
    "a named pipe": pipe,
    "a device": device,
    "a folder": folder,
    "a socket": listener,
    "Permission denied": shut,
    "too large": sparse,
}
"""What a line says of it -> puts it into a place where there is nothing."""


def put(kind: str, path: Path) -> None:
    """Put it in the place of what lies there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    KINDS[kind](path)
