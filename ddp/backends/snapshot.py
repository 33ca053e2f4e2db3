"""`cpu`: the parent process averages the parameters of the ranks. They lie in shared memory; ranks add the difference.

The reducer replaces each snapshot by its excess over the average, so that a rank needs one subtraction only. It also
measures the distances; each rank reads its own in a file beside the excess.

No lock is needed, because the rounds of the core say who may access what, and a round opens only after the one before is
closed. Between the order to average and its report, a rank writes its own snapshot. Between the last report and `Reduced`,
only the reducer accesses snapshots and average. Between `Apply` and its answer, a rank reads its own excess and the
average. It reads the average once more for an evaluation, which was ordered before its next snapshot, and the reducer
cannot begin without that. A rank that was given up and wakes can only write its own snapshot, which no round uses."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ddp.backends.base import AverageResult, RankContext
from ddp.core.messages.commands import Average, Reduce
from ddp.core.messages.events import Reduced
from ddp.core.values.frozen import finite
from ddp.process.clock import now
from ddp.process.memory import shared
from ddp.replica.memory.buffers import falls_below_zero, lengths, moves, signed
from ddp.replica.memory.flat import KINDS, Section, swapped
from ddp.replica.memory.weighted_mean import average, ratio
from ddp.replica.optim.optimizer_state import InnerOptimizer
from ddp.replica.optim.outer_optimizer import Outer, outer, precise
from ddp.replica.task import Job

NOBODY = "average"
"""Replaces the rank's number in the file name of an average."""


def _open(scratch: Path, name: str, dtype: torch.dtype, elements: int) -> Tensor:
    """Return a tensor in shared memory by name; create it if it does not exist."""
    return shared(scratch / f"{name}.{str(dtype).removeprefix('torch.')}", dtype, elements)


def _like(scratch: Path, section: Section, who: int | str) -> Tensor:
    return _open(scratch, f"{section.kind}-{who}", section.values.dtype, section.values.numel())


def _velocity(scratch: Path, dtype: torch.dtype, elements: int) -> Tensor:
    """Return the outer optimizer's velocity for parameters of this type, initially zero."""
    return _open(scratch, f"velocity-{str(dtype).removeprefix('torch.')}", precise(dtype), elements)


def snapshot_files(scratch: Path, kind: str, rank: int) -> list[Path]:
    """Return the files of a kind of a rank's snapshot, which it created before it was ready."""
    return sorted(scratch.glob(f"{kind}-{rank}.*"))


def snapshot_bytes(scratch: Path, rank: int) -> int:
    """Return the size of a rank's snapshot in bytes; 0 if its backend takes none."""
    return sum(path.stat().st_size for kind in KINDS for path in snapshot_files(scratch, kind, rank))


class Backend:
    """A rank's side: its own snapshot, and the average that all ranks read."""

    transport = "memory"

    def __init__(self, job: Job, rank: int, loop: RankContext) -> None:
        self._loop, self._apart, self._applied = loop, job.averaging.apart, False
        self._inner = InnerOptimizer(loop.replica.optimizer, job.averaging)
        self._sections = [*loop.replica.state.sections, *self._inner.sections]
        self._snapshot = [_like(job.scratch, section, rank) for section in self._sections]
        self._average = [_like(job.scratch, section, NOBODY) for section in self._sections]
        self._lengths = [lengths(section, loop.replica.model) for section in self._sections]
        self._divergence = _open(job.scratch, f"divergence-{rank}", torch.float64, 2)
        self._velocities = [
            _velocity(job.scratch, section.values.dtype, section.values.numel())
            for section in (self._sections if job.averaging.outer != "none" else ())
            if section.kind == "parameters"
        ]
        self._bytes = sum(laid.nbytes for laid in self._snapshot)
        if job.averaging.outer != "none" and not job.life:
            # The outer optimizer starts from the initial parameters, which have the same bits on all ranks.
            for section, mean in zip(self._sections, self._average, strict=True):
                mean.copy_(section.values)

    def snapshot(self, order: Average) -> None:
        """Copy the replica to shared memory."""
        began = now()
        self._loop.replica.state.gather()
        self._inner.gather()
        for section, laid in zip(self._sections, self._snapshot, strict=True):
            laid.copy_(section.values)
        self._loop.meter.add("copy", began, size=self._bytes)

    def apply(self, round: int, exact: bool) -> AverageResult:
        """Add the change by the average to the replica; integer buffers take the maximum.

        The state of the rank's own optimizer becomes the average: adding a change could make a second moment negative. So do
        all floating-point buffers where a value of one that is never negative, such as a variance, would be so."""
        began = now()
        self._loop.replica.state.gather()
        below = not exact and self._falls_below_zero()
        for section, excess, mean in zip(self._sections, self._snapshot, self._average, strict=True):
            own, apart = section.values, self._apart and section.kind == "parameters"
            whole = section.kind == "optimizer" or (exact and not apart) or (below and moves(section))
            if whole:
                own.copy_(mean)
            elif own.dtype is torch.bool:
                own.logical_or_(mean.to(own.device))
            else:
                signed(own).sub_(signed(excess.to(own.device)))  # unchanged values keep their bits
        self._inner.scatter()
        self._applied = True
        seconds = self._loop.meter.add("copy", began, size=2 * self._bytes) - began
        return AverageResult(seconds, 2 * self._bytes, *map(finite, self._divergence.tolist()))

    def _falls_below_zero(self) -> bool:
        parts = zip(self._sections, self._snapshot, self._average, self._lengths, strict=True)
        return any(
            falls_below_zero(section.values, *(each.to(section.values.device) for each in (excess, mean, lengths)))
            for section, excess, mean, lengths in parts
            if moves(section)
        )

    def averaged_weights(self, exact: bool) -> AbstractContextManager[None]:
        """Swap in the average for an evaluation. Before the first average the replica is the shared model, as when a run
        resumes from a checkpoint with only an evaluation left to do in its epoch."""
        own = not self._applied or (exact and not self._apart)
        return nullcontext() if own else swapped(self._pairs())

    def average_state(self) -> list[Tensor]:
        """Return the outer optimizer's velocities. The reducer changes them only between this rank's snapshot and
        `Apply`."""
        return self._velocities

    def state_dict(self) -> dict[str, Any]:
        """Return whether there is an average; its values are in shared memory."""
        return {"averaged": self._applied}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the replica to the average in shared memory, if there is one."""
        self._applied = state["averaged"]
        if self._applied:
            self._loop.replica.state.gather()
            for section, mean in zip(self._sections, self._average, strict=True):
                section.values.copy_(mean)
            self._inner.scatter()

    def finish(self) -> None:
        """Set the replica to the last average, if the two differ."""
        if self._apart and self._applied:
            for own, mean in self._pairs():
                own.copy_(mean)

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Return pairs of (parameters or buffers, their average)."""
        pairs = zip(self._sections, self._average, strict=True)
        return [(section.values, mean) for section, mean in pairs if section.kind != "optimizer"]

    def close(self) -> None:
        """Do nothing: the files are removed with the run's scratch folder."""


class Reducer:
    """Averages snapshots in a thread of the coordinator's process."""

    def __init__(self, job: Job, done: Callable[[Reduced | Exception], None]) -> None:
        torch.set_num_threads(1)
        self._scratch, self._done, self._settings = job.scratch, done, job.averaging
        self._files: dict[Path, Tensor] = {}
        self._paths: dict[tuple[str, int], list[Path]] = {}
        self._outer: dict[Path, Outer | None] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="reducer")

    def __enter__(self) -> Reducer:
        return self

    def __exit__(self, *exc: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def submit(self, order: Reduce) -> None:
        """Average in the background; `done` gets the result or the exception."""
        self._last = self._pool.submit(self._reduce, order)

    def wait(self) -> None:
        """Wait until everything submitted is done."""
        self._last.result()

    def _reduce(self, order: Reduce) -> None:
        try:
            began = now()
            weights = [self._settings.weight(samples) for samples in order.samples]
            size, norm, changes = 0, 0.0, [0.0] * len(order.members)
            for kind in KINDS:
                for path in self._snapshots(kind, order.members[0]):
                    mean = self._file(path.with_stem(f"{kind}-{NOBODY}"))
                    laid = [self._file(path.with_stem(f"{kind}-{rank}")) for rank in order.members]
                    length, apart = average(mean, laid, weights, **self._treatment(kind, path, mean))
                    if kind == "parameters":  # divergence is measured over parameters alone
                        norm, changes = norm + length, [a + b for a, b in zip(changes, apart, strict=True)]
                    size += (2 * len(laid) + 1) * mean.nbytes
            for rank, change in zip(order.members, changes, strict=True):
                divergence = ratio(change, norm)
                result = self._file(self._scratch / f"divergence-{rank}.float64")
                result.copy_(torch.tensor([math.nan if divergence is None else divergence, change], dtype=result.dtype))
            self._done(Reduced(now(), order.round, now() - began, size))
        except Exception as error:
            self._done(error)

    def _snapshots(self, kind: str, rank: int) -> list[Path]:
        if (kind, rank) not in self._paths:
            self._paths[kind, rank] = snapshot_files(self._scratch, kind, rank)
        return self._paths[kind, rank]

    def _treatment(self, kind: str, path: Path, mean: Tensor) -> dict[str, Any]:
        """Return arguments of `average` for files of this kind: only parameters have an outer optimizer and elastic
        blending."""
        if kind != "parameters":
            return {"blend": None if kind == "optimizer" else 1.0}
        name = path.with_stem(kind)
        if name not in self._outer:
            step = self._outer[name] = outer(self._settings, mean)
            if step is not None:  # in shared memory, as ranks save it in checkpoints
                step.velocity = _velocity(self._scratch, mean.dtype, mean.numel())
        elastic = self._settings.elastic
        return {"outer": self._outer[name], "blend": 1.0 if elastic is None else elastic}

    def _file(self, path: Path) -> Tensor:
        """Return the tensor in a rank's file; it stays mapped."""
        if path not in self._files:
            dtype = getattr(torch, path.suffix[1:])
            self._files[path] = _open(self._scratch, path.stem, dtype, path.stat().st_size // dtype.itemsize)
        return self._files[path]
