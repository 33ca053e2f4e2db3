"""A rank's measurements: slices of its time, and its memory now and then.

Owns the file `slices-<rank>.jsonl` in the run's scratch folder. It is written every KEEP_S, so a killed rank loses little.
Does not know what the slices mean."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean
from threading import get_ident
from time import process_time, thread_time
from typing import IO, TYPE_CHECKING, Any

from ddp.core.errors import OutOfResources
from ddp.core.messages.event_parts import WorkSeconds
from ddp.core.messages.measurements import Memory, Slice
from ddp.process.clock import core_pace, core_wait, now
from ddp.process.codec import encode_slices
from ddp.process.resource_errors import shortage

if TYPE_CHECKING:
    import torch

_PAGE = os.sysconf("SC_PAGE_SIZE")
COMPUTING = frozenset({"forward", "backward", "optimizer"})
"""Kinds of slices in which a rank computes on a batch that it has."""
LONGEST = 1 << 16
"""Most bytes of a line; typical ones have about a hundred."""
KEEP_S = 0.1
"""Seconds after which slices are written out: what a killed rank did since then is lost."""


SAMPLE_S = 0.02
"""Seconds between two samples of how fast the core is."""


class Meter:
    """Appends slices in memory (about a microsecond each) and writes them out now and then."""

    def __init__(self, rank: int, scratch: Path, device: torch.device) -> None:
        self.rank = rank
        self._path = scratch / f"slices-{rank}.jsonl"
        self._slices: list[Slice] = []
        self._hidden: list[Slice] = []
        """Collectives in another thread, which overlap with the slices of this one."""
        self._torn = True
        """Whether the file may end in the middle of a line, until the first write has cut it."""
        self._written = now()
        self._last = self._flushed = 0.0
        """When the last slice ended, and the last one written out."""
        self._data = self._passes = self._emulated = 0.0
        """Seconds of waiting for batches, of computing, and of emulated slowness, since the last call of `worked`."""
        self._used = 0.0
        """Processor seconds of computing since then."""
        self.exchanged = 0.0
        """Seconds of collectives so far, with the waiting for other ranks in them."""
        self._link = 0.0
        """Ratio of the quickest transfer since then to the time that its link needs; 0: none was measured."""
        self._cores: list[float] = []
        """Samples of the core's pace since then."""
        self._sampled = -SAMPLE_S
        self._thread, self._queued = get_ident(), core_wait()
        """The thread that trains, and how long it had waited for a core when `worked` was last called."""
        self._process = os.getpid()
        self._began: float | None = None
        """The thread's processor time when it began to compute; None if it does not, or if a GPU computes."""
        self._processor = thread_time if device.type == "cpu" else None
        self._synchronize: Callable[[], None] | None = None
        self._allocated: Callable[[], int] | None = None
        self._use: Callable[[], float | None] = lambda: None
        if device.type == "cuda":
            import torch

            # Kernels are only enqueued on a GPU: a slice ends when the GPU is done, not the host.
            self._synchronize = torch.cuda.synchronize
            self._allocated = partial(torch.cuda.memory_allocated, device)
            self._use = _use(device)

    def add(self, kind: str, since: float, seq: int = 0, size: int = 0) -> float:
        """Add a slice of `kind` from `since` to now (seconds), of `size` bytes; return now. Slices that lie inside it are
        cut out: an exchange during a backward pass does not count as computing."""
        if self._synchronize:
            self._synchronize()
        at = now()
        if self._last > since:
            self._cut(since, kind)
            since = self._last
        self._slices.append(Slice(since, self.rank, kind, at - since, seq, size))
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
        elif kind == "exchange":
            self.exchanged += seconds

    def compute(self) -> None:
        """Begin to measure processor time of the calling thread, which computes once it has a batch."""
        if self._processor:
            self._began = self._processor()

    def rest(self) -> None:
        """Stop measuring processor time: the thread does something else."""
        if self._processor and self._began is not None:
            self._used += self._processor() - self._began
            self._began = None

    def sample_core(self) -> None:
        """Measure how fast the core of the calling thread is, if SAMPLE_S have passed and the thread computes on it."""
        if self._processor and (at := now()) >= self._sampled + SAMPLE_S:
            self._sampled = at
            self._cores.append(core_pace())

    def sent(self, ratio: float, queued: float) -> None:
        """Note a transfer that took `ratio` times as long as its link needs (0: not measured). `queued`: seconds for which
        the calling thread waited for a core meanwhile, which do not count for the batch."""
        if ratio:
            self._link = min(self._link or ratio, ratio)
        if get_ident() == self._thread:
            self._queued += queued

    def worked(self) -> WorkSeconds:
        """Return where the time of steps went since the last call."""
        computing = max(self._passes - self._used, 0.0) if self._processor else 0.0
        queued, self._queued = self._queued, core_wait()
        reading = min(self._data, max(self._queued - queued - computing, 0.0))
        core = fmean(self._cores) if self._cores else 0.0
        parts = self._data, self._passes + self._emulated, computing, reading, self._link, core
        self._data = self._passes = self._emulated = self._used = self._link = 0.0
        self._cores.clear()
        return WorkSeconds(*(round(each, 7) for each in parts))

    def add_hidden(self, since: float, until: float, seq: int, size: int) -> None:
        """Add a collective of another thread, which overlaps with the slices of this one."""
        self._hidden.append(Slice(since, self.rank, "hidden", until - since, seq, size))

    def _cut(self, since: float, kind: str) -> None:
        """Add slices of `kind` in the gaps between the slices that began after `since`; the caller adds the part after the
        last."""
        first = len(self._slices)
        while first and self._slices[first - 1].at >= since:
            first -= 1
        before = self._slices[first - 1] if first else None
        at = max(since, before.at + before.seconds if before else self._flushed)
        for inner in sorted(self._slices[first:], key=lambda piece: piece.at):
            if inner.at > at:
                self._slices.append(Slice(at, self.rank, kind, inner.at - at))
                self._count(kind, inner.at - at)
            at = inner.at + inner.seconds

    def tick(self) -> None:
        """Write the slices out if KEEP_S has passed."""
        if now() - self._written > KEEP_S:
            self.flush()

    def flush(self) -> None:
        """Write all slices and the present memory out; in a forked copy of the process do nothing. Raises
        OutOfResources."""
        if os.getpid() != self._process:
            return
        rank, self._written = self.rank, now()
        lines = encode_slices([*self._slices, *self._hidden])
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
            error.filename = os.path.realpath(self._path)  # a full disk's error has no file name
            raise OutOfResources(f"its measurements cannot be written: {shortage(error)}") from error
        self._flushed = self._last
        self._slices.clear()
        self._hidden.clear()

    def _on_device(self) -> bytes:
        """Return the GPU's fields for a line of memory."""
        if self._allocated is None:
            return b""
        use = self._use()
        return b',"device_bytes":%d' % self._allocated() + (b"" if use is None else b',"device_use":%r' % use)


def _cut_torn(file: IO[bytes]) -> None:
    """Truncate a file to its last complete line, as a killed rank may have been restarted in the middle of writing one."""
    start = max(file.seek(0, os.SEEK_END) - LONGEST, 0)
    file.seek(start)
    file.truncate(start + file.read().rfind(b"\n") + 1)


def _use(device: torch.device) -> Callable[[], float | None]:
    """Return a function that asks the driver what fraction of the last second a GPU was busy. It returns None without
    NVML's bindings (the extra `gpu`), or for a MIG slice of a GPU."""
    import torch

    def ask() -> float | None:
        try:
            return torch.cuda.utilization(device) / 100
        except Exception:  # NVML raises errors of its own; a figure for the record must not end a run
            return None

    return ask if ask() is not None else lambda: None


def own_memory(rank: int, device: str) -> Memory | None:
    """Return what this process uses, for `rank` on `device`; None if the system does not tell."""
    if (resident := _resident()) is None:
        return None
    measured: dict[str, Any] = {}
    if device.startswith("cuda"):
        import torch

        place = torch.device(device)
        measured = {"device_bytes": torch.cuda.memory_allocated(place), "device_use": _use(place)()}
    return Memory(now(), rank, resident, cpu_s=process_time(), **measured)


def _resident() -> int | None:
    """Return the resident memory of this process in bytes, in about ten microseconds; None if the system does not tell."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return None


def reset_peak_rss() -> None:
    """Reset the peak of resident memory (Linux only; elsewhere the peak is that of the whole process)."""
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
