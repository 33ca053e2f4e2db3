"""Processor cores that simulated ranks share. Does not know what runs on them."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from ddp.sim.timeline import EventQueue


class SharedCores:
    """`count` cores, of which each of n running pieces of work gets `count` / n, at most one: what a kernel does that hands
    out cores in slices."""

    def __init__(self, count: int, timeline: EventQueue) -> None:
        self._count, self._timeline = count, timeline
        self._running: list[tuple[float, int, Callable[[], None]]] = []
        """A heap of (where the piece ends on the scale of `_done`, its number, what to do then)."""
        self._done, self._since = 0.0, 0.0
        """Seconds of work that a piece would have done that began at the start, up to the time of the last change."""
        self._started = self._changes = 0

    def run(self, seconds: float, then: Callable[[], None]) -> None:
        """Begin a piece of `seconds` of work, and call `then` at its end."""
        self._advance()
        self._started += 1
        heapq.heappush(self._running, (self._done + seconds, self._started, then))
        self._schedule()

    def _pace(self) -> float:
        return min(self._count / len(self._running), 1.0) if self._running else 0.0

    def _advance(self) -> None:
        now = self._timeline.now
        self._done, self._since = self._done + (now - self._since) * self._pace(), now

    def _schedule(self) -> None:
        self._changes += 1
        if self._running:
            left = max(self._running[0][0] - self._done, 0.0)
            self._timeline.after(left / self._pace(), self._end, self._changes)

    def _end(self, change: int) -> None:
        if change != self._changes:
            return  # another piece has begun or ended since: its end comes at another time
        self._advance()
        *_, then = heapq.heappop(self._running)
        self._schedule()
        then()
