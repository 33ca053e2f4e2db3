"""Files that are either as before or complete, whatever happens while they are written."""

from __future__ import annotations

import os
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write `text` (UTF-8) so that `path` is either as before or complete. Raise OSError."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, body: bytes) -> None:
    """Write `body` in the same way; nothing that lies there, be it a pipe or a link, is written to. Raise OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(body)
        os.replace(temporary, path)
    except OSError as error:
        error.filename = str(path)  # what is written to an open file fails without a name
        error.filename2 = None
        raise
    finally:
        temporary.unlink(missing_ok=True)
