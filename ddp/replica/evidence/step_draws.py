"""Draws the steps of a run that an audit repeats, by a keyed hash that the steps themselves cannot predict.

A run is divided into equal stretches of samples. In each one a sample is drawn, and the step that trains it is saved, so
every engine saves equally many steps. Two more are drawn in the first and in the last window, and two at the boundary of
two epochs. Where ranks step on their own, each rank also saves three steps of its own, one of them in the last epoch, and
some first steps after an average. Besides, each rank saves the states before and after a row of consecutive steps, to catch
what happens only at, say, every tenth step. Pure."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from dataclasses import dataclass, replace

STRETCHES = 8
"""Stretches of a run, each with one drawn step; fewer where saved steps are large."""
EARLY = 4
"""The early drawn step of a rank is one of its first so many."""
ROW, MOST_ROW = 64, 64
"""A row contains 1 in ROW of a rank's steps, at most MOST_ROW."""
DRAWS = 1 << 20
"""Resolution of the drawn start of a row."""
ROUNDS = 4
"""About how many averages are drawn for each doubling of their number, to compare optimizer states across."""
AFTER = 2
"""About how many averages are drawn per tripling of their number, to save a rank's first step after; the first two
always."""


def drawn(key: str, most: int, *words: int | str) -> int:
    """Return a pseudo-random number from 0 to `most` - 1, a function of `key` and `words`."""
    text = " ".join(map(str, (key, *words)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") % most


@dataclass(frozen=True)
class StepDraws:
    """The steps of one rank that are saved."""

    samples: tuple[int, ...]
    """Indices of samples in the run (over all epochs), ascending: the step that trains one of them is saved."""
    steps: frozenset[int]
    """Numbers of the rank's own steps."""
    key: str
    row: tuple[float, int] = (0.0, 0)
    """Earliest start of the row, as a fraction of the run; number of its steps (0: no row)."""
    rank: int | None = None
    """The rank, if it steps on its own; else None."""
    late: int = -1
    """Index of a step among the rank's steps in the last epoch; -1: none."""

    @staticmethod
    def of(
        key: str, rank: int, total: int, window: int, alone: bool, stretches: int = STRETCHES, epochs: int = 1
    ) -> StepDraws:
        """Draw for a run of `total` samples in `epochs`; a step of all ranks has `window` samples. `alone`: ranks step on
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
        """Return the draws for a rank that saves less than others do: those of the run and one step of its own."""
        return replace(self, steps=frozenset([max(self.steps)]), row=(0.0, 0), rank=None, late=-1)

    def has(self, first: int, last: int, step: int) -> bool:
        """Return whether to save the step that trains samples [first, last), the rank's own number `step`."""
        return bisect_left(self.samples, first) < bisect_left(self.samples, last) or step in self.steps

    def after(self, averages: int) -> bool:
        """Return whether to save the rank's first step after `averages` averages."""
        most = max(averages, AFTER)
        return self.rank is not None and averages > 0 and drawn(self.key, most, "after", self.rank, averages) < AFTER

    def round(self, number: int) -> bool:
        """Return whether to compare optimizer states across the average of round `number`."""
        return drawn(self.key, number + ROUNDS, "round", number) < ROUNDS
