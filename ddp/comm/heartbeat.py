"""Heartbeats of a rank during a collective, in which its own thread cannot send any.

A rank that waits for a slow rank still beats; a stopped process does not. So the coordinator can distinguish them. A long
time without a beat may have passed before the collective, which therefore begins with one.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from types import TracebackType
from weakref import ReferenceType, ref

from ddp.process.clock import now


class Heartbeat:
    """Use `with heart:` around a collective, or around long work that may contain collectives. Another thread calls `beat`
    every `every_s` seconds meanwhile."""

    def __init__(self, every_s: float, beat: Callable[[], None], most: int | None = None) -> None:
        """`every_s`: infinity for no beats. `most`: maximum number of beats in one collective; None: no limit."""
        self._every_s, self._beat, self._most = every_s, beat, most
        self._entered = 0
        """Number of entries and exits: odd during a collective."""
        self._left = now()
        """Time at which the last collective ended."""
        self._within = 0
        """Depth of nested blocks."""

    def limited(self, most: int) -> Heartbeat:
        """Return a heartbeat with at most `most` beats, for work that cannot be distinguished from a hang."""
        return Heartbeat(self._every_s, self._beat, most)

    def __enter__(self) -> None:
        self._within += 1
        if self._within > 1:
            return
        self._entered += 1
        if self._entered == 1 and self._every_s < math.inf:
            beating = threading.Thread(target=self._watch, args=(ref(self), self._every_s), name="heart", daemon=True)
            beating.start()
        if self._most is None and now() - self._left > self._every_s:
            self._beat()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._within -= 1
        if not self._within:
            self._entered += 1
            self._left = now()

    @staticmethod
    def _watch(watched: ReferenceType[Heartbeat], every_s: float) -> None:
        """Beat until the heartbeat is collected. A strong reference here would keep it, and the rank that it beats for."""
        rest, before, beats = threading.Event(), 0, 0
        while not rest.wait(every_s):
            heart = watched()
            if heart is None:
                return
            beats = beats + 1 if heart._entered == before else 0
            if heart._entered % 2 and 0 < beats <= (heart._most or beats):
                try:
                    heart._beat()
                except Exception:  # the parent has ended; the rank will notice it
                    return
            before = heart._entered
            del heart
