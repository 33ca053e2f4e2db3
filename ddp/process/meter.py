"""A rank's measurements: slices of its time, and its memory now and then.

Owns the file `slices-<rank>.jsonl` in the run's scratch folder, written in pieces, so that a killed rank leaves what it
had. Knows nothing of what the slices mean.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import get_ident
from time import process_time, thread_time
from typing import IO, TYPE_CHECKING, Any

import msgspec

from ddp.core.event_parts import WorkSeconds
from ddp.core.measurements import Memory
from ddp.process.clock import core_wait, now
from ddp.process.codec import MeasuredSlice

if TYPE_CHECKING:
    import torch

_PAGE = os.sysconf("SC_PAGE_SIZE")
COMPUTING = frozenset({"forward", "backward", "optimizer"})
"""Kinds of slices that are a rank's own work on a batch that is there."""
LONGEST = 1 << 16
"""Bytes of a line, at most; they have some hundred."""
KEEP_S = 0.1
"""Slices are written out at least this often, seconds: what a killed rank did since is not known."""


class Meter:
    """Appends slices in memory (about a microsecond piece) and writes them out now and then."""

    def __init__(self, rank: int, scratch: Path, device: torch.device) -> None:
        self.rank = rank
        self._path = scratch / f"slices-{rank}.jsonl"
        self._slices: list[MeasuredSlice] = []
        self._hidden: list[MeasuredSlice] = []
        """Of another thread, beside what this one does."""
        self._torn = True
        """Whether the file may end in the middle of a line: nothing is written yet."""
        self._written = now()
        self._last = self._flushed = 0.0
        """When the last slice ended, and the last that was written out."""
        self._data = self._passes = self._emulated = 0.0
        """Seconds until batches were there, of computing, and of emulated slowness, since `worked` was last called."""
        self._used = 0.0
        """Processor seconds of computing since then."""
        self._link = 0.0
        """Of the quickest transfer since then: times what its link needs; 0: none was measured."""
        self._thread, self._queued = get_ident(), core_wait()
        """What the thread had waited for a core by then, whatever it did."""
        self._began: float | None = None
        """The processor clock of the thread, where it computes; None on a device, which computes for it."""
        self._processor = thread_time if device.type == "cpu" else None
        self._synchronize: Callable[[], None] | None = None
        self._allocated: Callable[[], int] | None = None
        self._use: Callable[[], float | None] = lambda: None
        if device.type == "cuda":
            import torch

            # Work is only enqueued on a device: a slice ends when the device is done, not the host.
            self._synchronize = torch.cuda.synchronize
            self._allocated = partial(torch.cuda.memory_allocated, device)
            self._use = _use(device)

    def add(self, kind: str, since: float, seq: int = 0, size: int = 0) -> float:
        """Add a slice of `kind` from `since` to now (seconds), of `size` bytes; return now. The slice is cut around
        slices that lie in it: an exchange during a backward pass is no computing."""
        if self._synchronize:
            self._synchronize()
        at = now()
        if self._last > since:
            self._cut(since, kind)
            since = self._last
        self._slices.append(MeasuredSlice(since, self.rank, kind, at - since, seq, size))
        self._last = at
        self._count(kind, at - since)
        return at

    def _count(self, kind: str, seconds: float) -> None:
        if kind in COMPUTING:
            self._passes += seconds
        elif kind == "data":
            self._data += seconds
            self.rest()
            self.compute()
        elif kind == "slowdown":
            self._emulated += seconds

    def compute(self) -> None:
        """Begin to count processor time of the calling thread: it computes, as it does once a batch is there."""
        if self._processor:
            self._began = self._processor()

    def rest(self) -> None:
        """Stop it: the thread does something else."""
        if self._processor and self._began is not None:
            self._used += self._processor() - self._began
            self._began = None

    def sent(self, ratio: float, queued: float) -> None:
        """Take note that a transfer took so many times as long as its link needs (0: not measured), and that the calling
        thread waited for a core meanwhile: that is no time of a batch."""
        if ratio:
            self._link = min(self._link or ratio, ratio)
        if get_ident() == self._thread:
            self._queued += queued

    def worked(self) -> WorkSeconds:
        """Return where the time of steps went since the last call."""
        computing = max(self._passes - self._used, 0.0) if self._processor else 0.0
        queued, self._queued = self._queued, core_wait()
        reading = min(self._data, max(self._queued - queued - computing, 0.0))
        parts = self._data, self._passes + self._emulated, computing, reading, self._link
        self._data = self._passes = self._emulated = self._used = self._link = 0.0
        return WorkSeconds(*(round(each, 7) for each in parts))

    def add_hidden(self, since: float, until: float, seq: int, size: int) -> None:
        """Add a collective that another thread was in, beside whatever else there was."""
        self._hidden.append(MeasuredSlice(since, self.rank, "hidden", until - since, seq, size))

    def _cut(self, since: float, kind: str) -> None:
        """Add slices of `kind` between those that began after `since`; the caller adds the rest, behind the last one."""
        first = len(self._slices)
        while first and self._slices[first - 1].at >= since:
            first -= 1
        before = self._slices[first - 1] if first else None
        at = max(since, before.at + before.seconds if before else self._flushed)
        for inner in sorted(self._slices[first:], key=lambda piece: piece.at):
            if inner.at > at:
                self._slices.append(MeasuredSlice(at, self.rank, kind, inner.at - at))
                self._count(kind, inner.at - at)
            at = inner.at + inner.seconds

    def tick(self) -> None:
        """Write slices out if it is time."""
        if now() - self._written > KEEP_S:
            self.flush()

    def flush(self) -> None:
        """Write all slices out."""
        rank, self._written = self.rank, now()
        lines = _ENCODER.encode_lines([*self._slices, *self._hidden])
        if (resident := _resident()) is not None:
            used = (self._written, rank, resident, process_time(), self._on_device())
            lines += b'{"type":"Memory","at":%r,"rank":%d,"rss_bytes":%d,"cpu_s":%r%b}\n' % used
        try:
            with self._path.open("a+b") as file:
                if self._torn:
                    _cut_torn(file)
                    self._torn = False
                file.write(lines)
        except OSError as error:
            error.filename = str(self._path)  # which a full disk does not say
            raise
        self._flushed = self._last
        self._slices.clear()
        self._hidden.clear()

    def _on_device(self) -> bytes:
        """Return what a line of memory tells of the rank's device."""
        if self._allocated is None:
            return b""
        use = self._use()
        return b',"device_bytes":%d' % self._allocated() + (b"" if use is None else b',"device_use":%r' % use)


_ENCODER = msgspec.json.Encoder()


def _cut_torn(file: IO[bytes]) -> None:
    """Cut a file back to its last whole line: this rank may have been killed while it wrote, and been started again."""
    start = max(file.seek(0, os.SEEK_END) - LONGEST, 0)
    file.seek(start)
    file.truncate(start + file.read().rfind(b"\n") + 1)


def _use(device: torch.device) -> Callable[[], float | None]:
    """Return a function that asks the driver what part of the time a GPU is busy; it gives None where nobody can ask:
    without NVML's bindings (the extra `gpu`), or for a part of a GPU."""
    import torch

    def ask() -> float | None:
        try:
            return torch.cuda.utilization(device) / 100
        except Exception:  # NVML has errors of its own; a figure for the record is worth no run
            return None

    return ask if ask() is not None else lambda: None


def own_memory(rank: int, device: str) -> Memory | None:
    """Return what this process uses, for `rank` on `device`; None where the system does not tell."""
    if (resident := _resident()) is None:
        return None
    measured: dict[str, Any] = {}
    if device.startswith("cuda"):
        import torch

        place = torch.device(device)
        measured = {"device_bytes": torch.cuda.memory_allocated(place), "device_use": _use(place)()}
    return Memory(now(), rank, resident, cpu_s=process_time(), **measured)


def _resident() -> int | None:
    """Return the resident memory of this process, bytes, in some ten microseconds. None where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return None


def reset_peak_rss() -> None:
    """Forget the peak of what ran before in this process. Linux; elsewhere the peak is the process's own."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_rss_bytes() -> int:
    """Return the peak resident memory of this process, bytes."""
    try:
        status = Path("/proc/self/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
