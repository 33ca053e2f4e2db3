"""`level`: suppresses growth when the divergence has risen twice in a row above a threshold, nudges down when it goes on.

Source: the convergence guard of floDl, which never nudges; this one does when all five remembered values rise."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ddp.core.guard.base import NUDGE_FACTOR, STABLE, GuardDecision, Report

RING = 5
RISING = 3
"""Number of values, each above the one before, that form a trend."""


@dataclass(frozen=True)
class LevelGuard:
    """Judges the divergence itself."""

    threshold: float = 0.05
    """A divergence below this is never judged."""

    def start(self) -> tuple[float, ...]:
        """Return the last divergences, newest last: none yet."""
        return ()

    def update(self, state: tuple[float, ...], report: Report) -> tuple[tuple[float, ...], GuardDecision]:
        """Judge the last divergences. After a nudge they are forgotten, as windows are shorter then."""
        ring = (*state, report.divergence)[-RING:]
        if report.divergence <= self.threshold or not _rises(ring[-RISING:], RISING):
            return ring, STABLE
        if _rises(ring, RING):
            return (), GuardDecision("nudge", report.divergence, self.threshold, NUDGE_FACTOR)
        return ring, GuardDecision("suppress", report.divergence, self.threshold)


def _rises(values: tuple[float, ...], length: int) -> bool:
    return len(values) == length and all(before < after for before, after in pairwise(values))
