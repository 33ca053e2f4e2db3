"""Sample spans: what is trained, as intervals of positions in an epoch's permutation.

Owns the arithmetic of intervals, the `Chunk` (work granted to a rank) and how a chunk is cut into batches. Knows nothing of
speeds, processes or tensors."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from ddp.core.values.frozen import replace, value

Span = tuple[int, int]
"""Half-open interval [start, stop) of positions in an epoch's permutation."""

Spans = tuple[Span, ...]
"""Disjoint, ascending spans, none adjacent to the next."""


def union(spans: Spans, more: Spans) -> Spans:
    """Return the union. Raises AssertionError if a position is in both: a sample would be trained twice."""
    merged: list[Span] = []
    for start, stop in sorted((*spans, *more)):
        assert start < stop, f"empty span [{start}, {stop})"
        if merged and start < merged[-1][1]:
            raise AssertionError(f"positions [{start}, {min(stop, merged[-1][1])}) are counted twice")
        if merged and start == merged[-1][1]:
            merged[-1] = (merged[-1][0], stop)
        else:
            merged.append((start, stop))
    return tuple(merged)


def measure(spans: Spans) -> int:
    """Return the number of positions in `spans`."""
    if len(spans) == 1:  # the usual case
        return spans[0][1] - spans[0][0]
    return sum([stop - start for start, stop in spans])


def sharers(samples: int, ranks: int, least: int) -> int:
    """Return the number of ranks that a batch of `samples` is divided among: as many as can have `least` samples, at least
    1.

    The first ranks take part, each with at least `least` samples unless the batch has fewer."""
    return min(ranks, max(samples // least, 1))


class Batch(NamedTuple):
    """One optimizer step: positions [start, stop) of `epoch`, part of a global batch of `total` samples.

    `total` exceeds `stop - start` only where gradients are averaged in the step. Then a batch may be empty (start == stop):
    the rank takes part with weight zero."""

    epoch: int
    start: int
    stop: int
    total: int
    idles: bool = False
    """Whether some rank has no samples of the global batch."""
    ranks: int = 1
    """Number of ranks that share the global batch."""

    @property
    def samples(self) -> int:
        return self.stop - self.start


def micro_batches(batch: Batch, most: int, least: int) -> list[Batch]:
    """Return the micro-batches of a rank's slice of a batch, cut evenly; the batch itself if it is empty.

    Their number is the one that the largest slice needs for at most `most` samples each, so it is equal on all ranks; less
    if one would have fewer than `least` samples."""
    if not batch.samples:
        return [batch]
    largest = -(-batch.total // batch.ranks)
    parts = max(min(-(-largest // most), batch.total // batch.ranks // least, batch.samples // least), 1)
    each, odd = divmod(batch.samples, parts)
    starts = [batch.start + part * each + min(part, odd) for part in range(parts + 1)]
    return [Batch(batch.epoch, start, stop, stop - start) for start, stop in pairwise(starts)]


@value(frozen=True)
class Chunk:
    """Work granted to a rank: positions [start, stop) of `epoch` in steps of `batch` samples.

    With `parts` > 1 the chunk is shared: each step trains a global batch of `batch` consecutive positions, of which this
    rank has slice `part`. Slices are even, the first ranks have the odd samples, and a slice has `least` samples or none
    (`sharers`). `done` steps are already trained."""

    epoch: int
    start: int
    stop: int
    batch: int
    part: int = 0
    parts: int = 1
    done: int = 0
    least: int = 1

    @property
    def steps(self) -> int:
        """Number of steps left."""
        return -(-(self.stop - self.start) // self.batch) - self.done

    def at(self, step: int) -> Batch:
        """Return the batch of the `step`-th remaining step (0: the next one)."""
        first = self.start + (self.done + step) * self.batch
        last = min(first + self.batch, self.stop)
        assert first < last, f"step {step} is past the end of {self}"
        total = last - first
        if self.parts == 1:
            return Batch(self.epoch, first, last, total)
        among = sharers(total, self.parts, self.least)
        if self.part >= among:
            return Batch(self.epoch, last, last, total, True, self.parts)
        each, odd = divmod(total, among)
        start = first + self.part * each + min(self.part, odd)
        return Batch(self.epoch, start, start + each + (self.part < odd), total, among < self.parts, self.parts)

    def spans(self, steps: int) -> Spans:
        """Return the spans of this rank's samples in the next `steps` steps."""
        if self.parts == 1:
            assert steps <= self.steps, f"{steps} steps asked for, {self.steps} left of {self}"
            first = self.start + self.done * self.batch
            return ((first, min(first + steps * self.batch, self.stop)),) if steps else ()
        return union((), tuple((b.start, b.stop) for b in map(self.at, range(steps)) if b.samples))

    def samples(self, steps: int) -> int:
        """Return the number of this rank's samples in the next `steps` steps."""
        if self.parts == 1:
            return min(steps * self.batch, self.stop - self.start - self.done * self.batch)
        return measure(self.spans(steps))

    @property
    def left(self) -> int:
        """Number of this rank's samples in all remaining steps."""
        if self.parts == 1:
            return self.stop - self.start - self.done * self.batch
        return measure(self.spans(self.steps))

    def advance(self, steps: int) -> Chunk:
        """Return the chunk after `steps` more steps."""
        assert 0 <= steps <= self.steps, f"{steps} steps reported, {self.steps} left of {self}"
        return replace(self, done=self.done + steps)
