"""Speeds: seconds per step of a rank, from the windows that it trained. Smooths jitter, follows changes, forgets the lost.

Source: the El Che strategy of floDl: adaptive smoothing (first version) and trust window (later). The first one's smoothing
factor is taken of the logarithm of the change here: taken of the relative change, a rank that becomes twice as fast is
followed less than half as well as one that becomes twice as slow, and neither is followed all the way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SMOOTHINGS = ("adaptive", "trust")
GAIN = 2.0
"""Smoothing factor per logarithm of the change: a factor of 1.65 and more is followed at once."""
LEAST = 0.1
"""Least smoothing factor."""
TRUST = 5
"""Samples of the trust window, and windows missed after which a speed is forgotten."""


@dataclass(frozen=True, slots=True)
class Speed:
    """What is known of a rank's speed."""

    step_s: float = 0.0
    """Smoothed seconds per step; 0: not measured, or forgotten."""
    samples: tuple[float, ...] = ()
    """Seconds per step in the last windows, newest last."""
    missed: int = 0
    """Windows in a row without a step."""


def follow(speed: Speed, steps: int, busy_s: float, smoothing: str) -> Speed:
    """After a window in which the rank trained `steps` in `busy_s` seconds."""
    if not steps or busy_s <= 0:
        missed = speed.missed + 1
        return Speed() if missed >= TRUST else Speed(speed.step_s, speed.samples, missed)
    new = busy_s / steps
    samples = (*speed.samples, new)[-TRUST:]
    if smoothing == "trust":
        return Speed(sum(samples) / len(samples), samples)
    return Speed(_adapt(speed.step_s, new) if speed.step_s else new, samples)


def _adapt(old: float, new: float) -> float:
    alpha = min(max(GAIN * abs(math.log(new / old)), LEAST), 1.0)
    return alpha * new + (1 - alpha) * old
