"""Signs of life from a rank that stands in a collective: its own thread cannot speak there.

A rank that waits for a slow one is alive, one that was stopped is not; only so can the coordinator tell them apart. What
came before the collective may have taken long too: then it begins with a sign.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from types import TracebackType

from ddp.process.clock import now


class Heartbeat:
    """`with heart:` around a collective, or what else takes long and may have collectives in it; `beat` is called from
    another thread every `every_s` seconds that it lasts."""

    def __init__(self, every_s: float, beat: Callable[[], None], most: int | None = None) -> None:
        """`every_s`: infinite for none at all. `most`: beats of one collective; None: as many as it lasts."""
        self._every_s, self._beat, self._most = every_s, beat, most
        self._entered = 0
        """Collectives entered and left: odd while in one."""
        self._left = now()
        """When the last one was left."""
        self._within = 0
        """Blocks around what is going on."""

    def limited(self, most: int) -> Heartbeat:
        """Return another one with the same beat, for what nobody can tell from standing still: so many beats, no more."""
        return Heartbeat(self._every_s, self._beat, most)

    def __enter__(self) -> None:
        self._within += 1
        if self._within > 1:
            return
        self._entered += 1
        if self._entered == 1 and self._every_s < math.inf:
            threading.Thread(target=self._watch, name="heart", daemon=True).start()
        if self._most is None and now() - self._left > self._every_s:
            self._beat()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._within -= 1
        if not self._within:
            self._entered += 1
            self._left = now()

    def _watch(self) -> None:
        rest, before, beats = threading.Event(), 0, 0
        while not rest.wait(self._every_s):
            beats = beats + 1 if self._entered == before else 0
            if self._entered % 2 and 0 < beats <= (self._most or beats):
                try:
                    self._beat()
                except Exception:  # the parent is gone: the rank will find out
                    return
            before = self._entered
