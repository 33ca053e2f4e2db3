"""Which rounds ranks record sketches of: drawn from the round's number, so that no rank knows before its order comes.

All of them where rounds are far apart. Of quicker ones as many as a bounded part of the time pays for, at least `LEAST` over
the run as far as its length can be foreseen. Those that end an epoch always: what they give is evaluated.
"""

from __future__ import annotations

ENOUGH_S = 0.02
"""Seconds for each sketched round: it costs a rank some 0.1 ms."""
LEAST = 200
AIM = 1.3 * LEAST
"""So many are drawn on the average, that there may hardly ever be fewer than `LEAST`."""
_MASK = 0xFFFF_FFFF_FFFF_FFFF


def is_drawn(round: int, seconds: float, done: float) -> bool:
    """Return whether to sketch a round that is opened `seconds` after the first, with a part `done` of the run trained."""
    if not round:
        return True
    expected = round / max(done, 1e-9)
    return draw(0, round) < max(seconds / round / ENOUGH_S, AIM / expected)


def draw(key: int, number: int) -> float:
    """Return a number in [0, 1) that looks random, the same for equal arguments: SplitMix64 (Steele et al. 2014)."""
    mixed = (key * 0xD1342543DE82EF95 + (number + 1) * 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return (mixed ^ (mixed >> 31)) / 2.0**64
