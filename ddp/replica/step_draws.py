"""Draws the steps of a run that an audit does again: a keyed hash decides, and nothing that a step could know.

A run is cut into equal stretches of samples, and of each the step is drawn that trains a sample drawn from it; so every
engine has as many, whatever ranks its steps fall to. Two more lie in the first and in the last window, two where an epoch
ends and the next one begins. Where ranks step on
their own, each has three of its own beside, one of them in the last epoch, so that none is left out, and first steps after
an average. Besides, each rank keeps the states before and after a row of steps that follow each other: what happens at every
tenth step is seldom in one that is drawn alone. Pure.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from dataclasses import dataclass, replace

STRETCHES = 8
"""Steps that are drawn of a run at least, but for the first and the last."""
EARLY = 4
"""A rank's first own step is among so many."""
ROW, MOST_ROW = 64, 64
"""A row has one step of so many, and so many at most."""
DRAWS = 1 << 20
"""Places that a row may begin at."""
ROUNDS = 4
"""Averages, about as many for each doubling of their number, before and after which optimizer states are compared."""
AFTER = 2
"""Averages, about as many for each threefold of their number, after which a rank's first step is kept: the first two are."""


def drawn(key: str, most: int, *words: int | str) -> int:
    """Return a number from 0 to `most` - 1 that is the key's and that of `words`."""
    text = " ".join(map(str, (key, *words)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") % most


@dataclass(frozen=True)
class StepDraws:
    """The steps of one rank that are kept."""

    samples: tuple[int, ...]
    """Of the run, counted over epochs, ascending: who trains one of them keeps the step."""
    steps: frozenset[int]
    """Numbers of the rank's own steps."""
    key: str
    row: tuple[float, int] = (0.0, 0)
    """Where the row begins at the earliest, as a share of the run; how many steps it has, 0: there is none."""
    rank: int | None = None
    """The rank, if it steps on its own."""
    late: int = -1
    """Number of a step of the rank in the last epoch, from 0; -1: none."""

    @staticmethod
    def of(
        key: str, rank: int, total: int, window: int, alone: bool, stretches: int = STRETCHES, epochs: int = 1
    ) -> StepDraws:
        """Draw for a run of `total` samples in `epochs`, of which a step of all ranks has `window`. `alone`: ranks step on
        their own."""
        count = min(stretches, total)
        ends = [total * k // count for k in range(count + 1)]
        samples = {ends[k] + drawn(key, ends[k + 1] - ends[k], "stretch", k) for k in range(count)}
        few = min(window, total)
        samples |= {drawn(key, few, "first"), total - 1 - drawn(key, few, "last")}
        if epochs > 1:
            begin = total // epochs * (1 + drawn(key, epochs - 1, "epoch"))
            samples |= {begin - 1, begin}
        own = -(-total // window)
        steps = {drawn(key, EARLY, "early", rank), drawn(key, max(own * 3 // 4, 1), "own", rank)} if alone else set()
        length = min(own // ROW, MOST_ROW)
        place = drawn(key, DRAWS, "row", *([rank] if alone else [])) / DRAWS
        row = (1.0 - 2.0 * length / own) * place, length if length > 1 else 0
        late = drawn(key, max(own // epochs // EARLY, 1), "late", rank) if alone else -1
        return StepDraws(tuple(sorted(samples)), frozenset(steps), key, row, rank if alone else None, late)

    def fewer(self) -> StepDraws:
        """Return those of a rank beside others of which more are kept: one of its own, besides those of the run."""
        return replace(self, steps=frozenset([max(self.steps)]), row=(0.0, 0), rank=None, late=-1)

    def has(self, first: int, last: int, step: int) -> bool:
        """Return whether a step is kept that trains the samples [first, last) and is the rank's own number `step`."""
        return bisect_left(self.samples, first) < bisect_left(self.samples, last) or step in self.steps

    def after(self, averages: int) -> bool:
        """Return whether the rank's first step after so many averages is kept."""
        most = max(averages, AFTER)
        return self.rank is not None and averages > 0 and drawn(self.key, most, "after", self.rank, averages) < AFTER

    def round(self, number: int) -> bool:
        """Return whether optimizer states are compared over the average `number`."""
        return drawn(self.key, number + ROUNDS, "round", number) < ROUNDS
