"""How far something long is, for the eye, on standard error: results never come from here."""

from __future__ import annotations

import sys
import time


class ProgressMeter:
    """How far something long is: one line on a terminal that is written over; elsewhere one line in all."""

    def __init__(self, what: str, total: int | None, done: int = 0, unit: str = "MB", scale: float = 1e6) -> None:
        self.what, self.total, self.done = what, total, done
        self._unit, self._scale = unit, scale
        self._live, self._shown = sys.stderr.isatty(), 0.0

    def __enter__(self) -> ProgressMeter:
        if not self._live:
            of = "" if self.total is None else f" ({self._size(self.total)} {self._unit})"
            print(f"{self.what}{of}", file=sys.stderr, flush=True)
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            self._show()
            print(file=sys.stderr)

    def add(self, amount: int) -> None:
        """So much more is done."""
        self.done += amount
        if self._live and time.monotonic() - self._shown > 0.1:
            self._show()

    def _show(self) -> None:
        self._shown = time.monotonic()
        of = "" if self.total is None else f" of {self._size(self.total)}"
        print(f"\r{self.what}: {self._size(self.done)}{of} {self._unit}", end="\033[K", file=sys.stderr, flush=True)

    def _size(self, amount: int) -> str:
        return f"{amount / self._scale:.1f}" if self._scale > 1 else str(amount)
