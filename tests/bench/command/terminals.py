"""A pseudo-terminal, and what stands on its screen: commands as a person sees them."""

from __future__ import annotations

import os
import pty
import re
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

_ORDERS = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass
class Terminal:
    """What was written to a terminal."""

    stdout: int
    written: bytearray = field(default_factory=bytearray)

    @property
    def left(self) -> list[str]:
        """Lines that stay: what is drawn over is gone."""
        rows: list[str] = [""]
        row = 0
        for part in re.split(rb"(\x1b\[[0-9;?]*[A-Za-z]|\r\n|\r|\n)", bytes(self.written)):
            if part in (b"\r\n", b"\n"):
                row += 1
                rows += [""] * (row + 1 - len(rows))
            elif part == b"\x1b[2K":
                rows[row] = ""
            elif match := re.fullmatch(rb"\x1b\[(\d*)A", part):
                row = max(row - int(match[1] or 1), 0)
            elif part != b"\r" and not _ORDERS.fullmatch(part):
                rows[row] += part.decode()
        return [line for line in rows if line.strip()]

    @property
    def live(self) -> list[str]:
        """All lines that ever stood there."""
        text = _ORDERS.sub(b"", bytes(self.written)).decode()
        return [line for line in re.split(r"[\r\n]+", text) if line.strip()]


@contextmanager
def terminal(columns: int = 100) -> Iterator[Terminal]:
    """Yield a terminal so wide; what was written is there when the context is left."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (40, columns))
    seen = Terminal(slave)

    def read() -> None:
        while True:
            try:
                part = os.read(master, 1 << 16)
            except OSError:  # the other end is closed
                return
            if not part:
                return
            seen.written += part

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield seen
    finally:
        os.close(slave)
        reader.join(10)
        os.close(master)
