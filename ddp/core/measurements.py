"""What a rank measures of itself beside its work: where its time goes, and its memory. For the record alone."""

from __future__ import annotations

from dataclasses import dataclass

from ddp.core.event_parts import FromRank


@dataclass(frozen=True)
class Slice(FromRank):
    """A stretch of a rank's time, measured by the rank; slices of a rank do not overlap.

    `kind` is one of `data`, `forward`, `backward`, `optimizer`, `slowdown` (the emulated part of a slow device),
    `exchange` (in a collective; slices of all ranks with equal `seq` are one collective), `copy` (to and from a
    snapshot), `wait` (for orders), `evaluate`, `checkpoint`; and `hidden`, a collective beside any of these.
    """

    kind: str
    seconds: float
    seq: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Memory(FromRank):
    """Memory of a rank's process and of its tensors on its GPU, processor seconds of all its threads, and the part of the
    last second in which its GPU was at work, whoever used it. None: not known, or it has no GPU."""

    rss_bytes: int
    cpu_s: float | None = None
    device_bytes: int | None = None
    device_use: float | None = None
