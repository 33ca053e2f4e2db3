"""Measurements of a rank besides its work: time slices and memory. For the record alone."""

from __future__ import annotations

from ddp.core.messages.event_parts import FromRank
from ddp.core.values.frozen import value


@value(frozen=True)
class Slice(FromRank):
    """A slice of a rank's time, measured by the rank; slices of a rank do not overlap (except `hidden`).

    `kind` is one of `data`, `forward`, `backward`, `optimizer`, `slowdown` (emulated slowness), `exchange` (in a
    collective; slices with equal `seq` on all ranks are one collective), `copy` (to and from a snapshot), `wait` (for
    orders), `evaluate`, `checkpoint`; and `hidden`, a collective that overlaps with other slices."""

    kind: str
    seconds: float
    seq: int = 0
    bytes: int = 0


@value(frozen=True)
class Memory(FromRank):
    """Memory of a rank's process and of its tensors on its GPU, processor seconds of all its threads, and the fraction of
    the last second in which its GPU was busy (with any process). None: not known, or no GPU."""

    rss_bytes: int
    cpu_s: float | None = None
    device_bytes: int | None = None
    device_use: float | None = None
