"""Speeds: seconds per step of a rank, measured in windows. Smooths jitter, follows changes, forgets ranks without steps.

Source: the El Che strategy of floDl: adaptive smoothing (first version) and trust window (later). Unlike floDl, the
smoothing factor depends on the logarithm of the change: with the relative change, a rank that becomes twice as fast is
followed less than half as well as one that becomes twice as slow, and neither completely. Only here, a change beyond `FAR`
counts as a hiccup until a second window confirms it."""

from __future__ import annotations

import math

from ddp.core.values.frozen import value

SMOOTHINGS = ("adaptive", "trust")
GAIN = 2.0
"""Smoothing factor per logarithm of the change: a change by a factor of 1.65 or more is followed at once."""
LEAST = 0.1
"""Smallest smoothing factor."""
FAR = 4.0
"""A change by more than this factor must be confirmed by a second consecutive window."""
TRUST = 5
"""Number of samples in the trust window, and of missed windows after which a speed is forgotten."""


@value(frozen=True)
class Speed:
    """The measured speed of a rank."""

    step_s: float = 0.0
    """Smoothed seconds per step; 0: not measured, or forgotten."""
    samples: tuple[float, ...] = ()
    """Seconds per step in the last accepted windows, newest last."""
    missed: int = 0
    """Number of consecutive windows without a step."""
    doubted: float = 0.0
    """Seconds per step in the last window if it was not accepted; else 0."""


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
    """Return the seconds per step to accept: `new`; of two consecutive windows that both deviate too much, the nearer one;
    0 if `new` is not confirmed yet.

    Of the first two windows the faster one counts, as the first includes the start-up."""
    change = _change(speed.step_s, new)
    if abs(change) <= math.log(FAR) or (change < 0 and len(speed.samples) < 2):
        return new
    before = _change(speed.step_s, speed.doubted)
    if change * before <= 0:
        return 0.0
    return new if abs(change) < abs(before) else speed.doubted


def _change(old: float, new: float) -> float:
    return math.log(new / old) if old and new else 0.0


def _adapt(old: float, new: float) -> float:
    alpha = min(max(GAIN * abs(math.log(new / old)), LEAST), 1.0)
    return alpha * new + (1 - alpha) * old
