"""`growth`: judges how fast the divergence grows per step, so that its scale does not matter.

Source: the growth guard (MSF guard) of floDl, with its numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ddp.core.guard.base import NUDGE_FACTOR, STABLE, GuardDecision, Report

DECAY = 0.9
NOISE_FLOOR = 1e-8
"""Below this the divergence is noise: the guard starts anew."""
SUPPRESS, NUDGE = 1e-3, 1e-2
"""Growth per step above which an average counts towards the streak of either verdict."""
STREAK = 3


@dataclass(frozen=True, slots=True)
class Trend:
    """State of the guard."""

    last: float = 0.0
    """The previous divergence; 0: none."""
    mean: float = 0.0
    """Exponential moving average of ln(divergence / previous one) / steps, without bias correction."""
    samples: int = 0
    suppress: int = 0
    nudge: int = 0
    """Numbers of consecutive averages above either limit."""


@dataclass(frozen=True)
class GrowthGuard:
    """Ignores the threshold, as growth is independent of scale."""

    threshold: float = 0.05

    def start(self) -> Trend:
        """Return a trend without a divergence."""
        return Trend()

    def update(self, state: Trend, report: Report) -> tuple[Trend, GuardDecision]:
        """Judge the growth. After a nudge the guard starts anew, as windows are shorter then."""
        if report.divergence < NOISE_FLOOR or not report.steps:
            return Trend(), STABLE
        if not state.last:
            return Trend(report.divergence), STABLE
        raw = math.log(report.divergence / state.last) / report.steps
        mean, samples = DECAY * state.mean + (1 - DECAY) * raw, state.samples + 1
        growth = mean / (1 - DECAY**samples)
        suppress = state.suppress + 1 if growth > SUPPRESS else 0
        nudge = state.nudge + 1 if growth > NUDGE else 0
        if nudge >= STREAK:
            return Trend(), GuardDecision("nudge", growth, NUDGE, NUDGE_FACTOR)
        after = Trend(report.divergence, mean, samples, suppress, nudge)
        return after, GuardDecision("suppress", growth, SUPPRESS) if suppress >= STREAK else STABLE
