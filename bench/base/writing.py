"""Files that are either as before or complete, whatever happens while they are written."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write `text` (UTF-8) so that `path` is either as before or complete. Raise OSError."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, body: bytes) -> None:
    """Write `body` in the same way; nothing that lies there, be it a pipe or a link, is written to. Raise OSError."""
    temporary = aside(path)
    try:
        temporary.write_bytes(body)
        _replace(temporary, path)
    except OSError as error:
        error.filename = str(path)  # what is written to an open file fails without a name
        error.filename2 = None
        raise
    finally:
        temporary.unlink(missing_ok=True)


def aside(path: Path) -> Path:
    """Return a hidden name beside `path` that nobody else uses, on whichever host."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")


def _replace(source: Path, path: Path) -> None:
    """Rename a file over another; where the file system has no such thing, that one is removed first."""
    try:
        os.replace(source, path)
    except FileExistsError:
        path.unlink()
        os.rename(source, path)
