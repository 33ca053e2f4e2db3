"""What events are made of: who speaks and when, and by what two states of a model are compared."""

from __future__ import annotations

from dataclasses import dataclass

Sums = tuple[float | None, ...]
"""By what two states of a model are compared: the sum of its parameters and of their magnitudes, then both of its
floating-point buffers. None: not finite. An average is linear, so these are averaged with the same weights."""
Files = tuple[tuple[str, int, str], ...]
"""(name, bytes, sha256) of each."""


@dataclass(frozen=True)
class FromRank:
    """What every event of a rank has."""

    at: float
    rank: int


@dataclass(frozen=True)
class Probe:
    """What a collective inside a step did to a rank's gradients (in place of parameters) and buffers; `samples` of its
    slice, `total` of the global batch."""

    samples: int
    total: int
    before: Sums
    after: Sums
