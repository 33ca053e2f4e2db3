"""`cpu`: ranks lay down snapshots in shared memory, the coordinator's process averages them, ranks add the difference.

Nobody blocks. No snapshot is ever torn, because the rounds of the core say who may touch what: a rank writes its snapshot
only between the order to and its report, the reducer reads only after all reports, and writes the average only while no
rank may read it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ddp.core.commands import Average, Join, Reduce
from ddp.core.events import Reduced
from ddp.core.spans import Batch
from ddp.runtime.backends.base import Change, Facts
from ddp.runtime.clock import now
from ddp.runtime.flat import divergence
from ddp.runtime.task import Job

if TYPE_CHECKING:
    from ddp.runtime.loop import Loop
    from ddp.runtime.replica import Replica

FACTS = Facts(blocking=False, in_step=False)
PIECE = 1 << 15
"""Elements averaged at a time, so that the double-precision sum stays in the cache."""


def _open(scratch: Path, name: str, dtype: torch.dtype, elements: int) -> Tensor:
    """A tensor in shared memory, by name; made when it is not there yet."""
    path = scratch / f"{name}.{str(dtype).removeprefix('torch.')}"
    size = elements * dtype.itemsize
    if size and hasattr(os, "posix_fallocate"):
        # Memory that is promised and not there would kill the process at the first touch.
        with path.open("ab") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                remedy = "give it more (docker: --shm-size), or leave TMPDIR and /dev/shm to where there is room"
                raise OSError(f"no room for {size / 1e6:.0f} MB of shared memory in {scratch}: {remedy}") from error
    return torch.from_file(str(path), shared=True, size=elements, dtype=dtype)


class Backend:
    """A rank's side: its own snapshot, and the average that all read."""

    facts = FACTS
    transport = "memory"

    def __init__(self, job: Job, rank: int, loop: Loop) -> None:
        self._loop, self._state = loop, loop.replica.state.tensors
        self._snapshot = [_open(job.scratch, f"snapshot-{rank}", t.dtype, t.numel()) for t in self._state]
        self._average = [_open(job.scratch, "average", t.dtype, t.numel()) for t in self._state]

    def join(self, order: Join) -> None:
        """Never asked for: snapshots need no group."""
        raise AssertionError("snapshots need no group")

    def share(self, round: int) -> None:
        """Never asked for: no round is missed, the average lies there for all."""
        raise AssertionError("the average lies there for all")

    def adopt(self, round: int) -> Change:
        """Never asked for."""
        raise AssertionError("the average lies there for all")

    def prepare_exchange(self, replica: Replica) -> None:
        """Never asked for: snapshots cannot be exchanged inside a step."""
        raise AssertionError("this backend does not exchange gradients")

    def exchange(self, batch: Batch) -> None:
        """Never asked for."""
        raise AssertionError("this backend does not exchange gradients")

    def average(self, order: Average, samples: int) -> Change:
        """Never asked for: this backend does not block."""
        raise AssertionError("a non-blocking backend has no collective")

    def snapshot(self) -> None:
        """Copy the replica to shared memory."""
        began = now()
        self._loop.replica.state.gather()
        for flat, laid in zip(self._state, self._snapshot, strict=True):
            laid.copy_(flat)
        self._loop.meter.add("copy", began, size=self._loop.replica.state.bytes)

    def apply(self, exact: bool) -> Change:
        """Add what the average changed; counters take the maximum."""
        began = now()
        state = self._loop.replica.state
        state.gather()
        change = divergence(self._snapshot, self._average, state.trained)
        for flat, laid, mean in zip(self._state, self._snapshot, self._average, strict=True):
            if exact:
                flat.copy_(mean)
            elif flat.dtype is torch.bool:
                flat.logical_or_(mean.to(flat.device))
            else:
                # What did not change keeps its bits; so infinities do, which have no difference.
                here, then = mean.to(flat.device), laid.to(flat.device)
                flat.copy_(torch.where(here == then, flat, flat + (here - then)))
        size = 3 * state.bytes
        seconds = self._loop.meter.add("copy", began, size=size) - began
        return Change(seconds, size, change)

    def consensus(self, exact: bool) -> AbstractContextManager[None]:
        """Put the average in place of the replica for an evaluation."""
        return nullcontext() if exact else self._swapped()

    @contextmanager
    def _swapped(self) -> Iterator[None]:
        own = [flat.clone() for flat in self._state]
        for flat, mean in zip(self._state, self._average, strict=True):
            flat.copy_(mean)
        try:
            yield
        finally:
            for flat, kept in zip(self._state, own, strict=True):
                flat.copy_(kept)

    def close(self) -> None:
        """The files go with the run's scratch folder."""


class Reducer:
    """Averages snapshots in a thread of the coordinator's process."""

    def __init__(self, job: Job, done: Callable[[Reduced | Exception], None]) -> None:
        torch.set_num_threads(1)
        self._scratch, self._done = job.scratch, done
        self._files: dict[Path, Tensor] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="reducer")

    def __enter__(self) -> Reducer:
        return self

    def __exit__(self, *exc: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def submit(self, order: Reduce) -> None:
        """Average in the background; what goes wrong there is handed to `done` as well."""
        self._pool.submit(self._reduce, order)

    def _reduce(self, order: Reduce) -> None:
        try:
            began, size = now(), 0
            for path in self._scratch.glob(f"snapshot-{order.members[0]}.*"):
                mean = self._file(path.with_stem("average"))
                laid = [self._file(path.with_stem(f"snapshot-{rank}")) for rank in order.members]
                average(mean, laid, order.samples)
                size += (len(laid) + 1) * mean.nbytes
            self._done(Reduced(now(), order.round, now() - began, size))
        except Exception as error:
            self._done(error)

    def _file(self, path: Path) -> Tensor:
        """The tensor in a file that a rank has made; kept mapped."""
        if path not in self._files:
            dtype = getattr(torch, path.suffix[1:])
            self._files[path] = _open(self._scratch, path.stem, dtype, path.stat().st_size // dtype.itemsize)
        return self._files[path]


def average(mean: Tensor, replicas: list[Tensor], samples: tuple[int, ...]) -> None:
    """`mean` becomes the average of `replicas`, weighted by `samples`; integers (counters) take the maximum.

    Summed in double precision, where sample count times significand is exact (up to float32): identical replicas give
    themselves. The first term starts the sum, so that even the sign of a zero is kept.
    """
    if not mean.is_floating_point():
        mean.copy_(torch.stack(replicas).amax(dim=0))
        return
    # An idle rank weighs nothing, whatever it holds.
    weighted = [(replica, weight) for replica, weight in zip(replicas, samples, strict=True) if weight]
    total = sum(samples)
    for start in range(0, mean.numel(), PIECE):
        piece = slice(start, start + PIECE)
        terms = (replica[piece].double().mul_(weight) for replica, weight in weighted)
        acc = next(terms)
        for term in terms:
            acc.add_(term)
        mean[piece] = acc.div_(total)
