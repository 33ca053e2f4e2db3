"""Signs of life from a rank that stands in a collective: its own thread cannot speak there.

A rank that waits for a slow one is alive, one that was stopped is not; only so can the coordinator tell them apart.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType


class Heart:
    """`with heart:` around a collective; `beat` is called from another thread every `every_s` seconds that it lasts."""

    def __init__(self, every_s: float, beat: Callable[[], None]) -> None:
        self._every_s, self._beat = every_s, beat
        self._entered = 0
        """Collectives entered and left: odd while in one."""

    def __enter__(self) -> None:
        self._entered += 1
        if self._entered == 1:
            threading.Thread(target=self._watch, name="heart", daemon=True).start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered += 1

    def _watch(self) -> None:
        rest, before = threading.Event(), 0
        while not rest.wait(self._every_s):
            if self._entered % 2 and self._entered == before:
                try:
                    self._beat()
                except Exception:  # the parent is gone: the rank will find out
                    return
            before = self._entered
