"""Decides in which rounds ranks record sketches, by the round's number, so that no rank knows before its order.

Rounds that are far apart are all drawn. Of quick rounds, a number is drawn that costs a bounded part of the time, but at
least `LEAST` over the run as far as its length can be predicted. Rounds that end an epoch are always drawn, as their result
is evaluated."""

from __future__ import annotations

ENOUGH_S = 0.02
"""Seconds of the run per sketched round, which costs a rank some 0.1 ms."""
LEAST = 200
AIM = 1.3 * LEAST
"""Expected number of drawn rounds, so that there are hardly ever fewer than `LEAST`."""
_MASK = 0xFFFF_FFFF_FFFF_FFFF


def is_drawn(round: int, seconds: float, done: float) -> bool:
    """Return whether to sketch a round that opens `seconds` after the first, when a fraction `done` of the run is
    trained."""
    if not round:
        return True
    expected = round / max(done, 1e-9)
    return draw(0, round) < max(seconds / round / ENOUGH_S, AIM / expected)


def draw(key: int, number: int) -> float:
    """Return a pseudo-random number in [0, 1), a function of the arguments: SplitMix64 (Steele et al. 2014)."""
    mixed = (key * 0xD1342543DE82EF95 + (number + 1) * 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return (mixed ^ (mixed >> 31)) / 2.0**64
