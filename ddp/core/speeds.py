"""Speeds: seconds per step of a rank, from the windows that it trained. Smooths jitter, follows changes, forgets the lost.

Source: the El Che strategy of floDl: adaptive smoothing (first version) and trust window (later). The first one's smoothing
factor is taken of the logarithm of the change here: taken of the relative change, a rank that becomes twice as fast is
followed less than half as well as one that becomes twice as slow, and neither is followed all the way. Here alone, a change
beyond `FAR` is a hiccup until a second window says the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SMOOTHINGS = ("adaptive", "trust")
GAIN = 2.0
"""Smoothing factor per logarithm of the change: a factor of 1.65 and more is followed at once."""
LEAST = 0.1
"""Least smoothing factor."""
FAR = 4.0
"""A change by more than this factor is believed when a second window in a row agrees."""
TRUST = 5
"""Samples of the trust window, and windows missed after which a speed is forgotten."""


@dataclass(frozen=True, slots=True)
class Speed:
    """What is known of a rank's speed."""

    step_s: float = 0.0
    """Smoothed seconds per step; 0: not measured, or forgotten."""
    samples: tuple[float, ...] = ()
    """Seconds per step in the last windows that were believed, newest last."""
    missed: int = 0
    """Windows in a row without a step."""
    doubted: float = 0.0
    """Seconds per step in the last window, where they are too far from what is known to be believed; else 0."""


def follow(speed: Speed, steps: int, busy_s: float, smoothing: str) -> Speed:
    """Return the speed after a window in which the rank trained `steps` in `busy_s` seconds."""
    if not steps or busy_s <= 0:
        missed = speed.missed + 1
        return Speed() if missed >= TRUST else Speed(speed.step_s, speed.samples, missed, speed.doubted)
    new = busy_s / steps
    if not (believed := _believed(speed, new)):
        return Speed(speed.step_s, speed.samples, doubted=new)
    new = believed
    samples = (*speed.samples, new)[-TRUST:]
    if smoothing == "trust":
        return Speed(sum(samples) / len(samples), samples)
    return Speed(_adapt(speed.step_s, new) if speed.step_s else new, samples)


def _believed(speed: Speed, new: float) -> float:
    """Return `new`; of two windows in a row that are both too far from what is known, the nearer; 0: not to be believed yet.

    The very first window is no better known than the second, and holds what starting up takes: the faster one counts.
    """
    change, before = _change(speed.step_s, new), _change(speed.step_s, speed.doubted)
    if abs(change) <= math.log(FAR) or (change < 0 and len(speed.samples) < 2):
        return new
    if change * before <= 0:
        return 0.0
    return new if abs(change) < abs(before) else speed.doubted


def _change(old: float, new: float) -> float:
    return math.log(new / old) if old and new else 0.0


def _adapt(old: float, new: float) -> float:
    alpha = min(max(GAIN * abs(math.log(new / old)), LEAST), 1.0)
    return alpha * new + (1 - alpha) * old
