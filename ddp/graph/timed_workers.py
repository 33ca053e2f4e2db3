"""The workers of a distributed graph: they run a function on all devices at once, record its time, and slow it down if a
speed is emulated.

Owns threads, meters and the time of a step. Must not know a model: a pending backward pass keeps the workers alive, and
must not keep the graph alive, which itself refers to the workers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from operator import add, sub
from pathlib import Path
from typing import Any

import torch

from ddp.core.messages.events import Slice
from ddp.graph.worker_threads import ReplicaFailed, WorkerThreads
from ddp.process.meter import Meter
from ddp.process.slowdown import Slowdown

Listener = Callable[[Any, float], None]
"""Function of every record (slices, plans, closed windows) and its time."""
WORK = ("backward", "optimizer")
"""Kinds of slice that always count as training. Other kinds count while gradients are enabled."""


@dataclass(frozen=True)
class Work:
    """The work of one pass, by rank. It is added to the step at the start of the backward pass."""

    samples: tuple[int, ...]
    steps: tuple[int, ...]
    busy_s: tuple[float, ...]
    """Seconds of forward passes."""
    whole: bool
    """Whether the pass is a whole window."""


class Listeners:
    """The listeners of a graph's records."""

    def __init__(self, *listeners: Listener | None) -> None:
        self._all = [each for each in listeners if each is not None]

    def __bool__(self) -> bool:
        return bool(self._all)

    def __call__(self, record: Any, at: float) -> None:
        for each in tuple(self._all):
            each(record, at)

    def add(self, listener: Listener) -> Callable[[], None]:
        """Add a listener. Return a function that removes it."""
        self._all.append(listener)

        def end() -> None:
            self._all = [each for each in self._all if each is not listener]

        return end


class ReplicaMeter(Meter):
    """Measures slices of a replica's time and passes them to listeners, instead of writing them to a file."""

    def __init__(self, rank: int, device: torch.device, listeners: Listeners) -> None:
        super().__init__(rank, Path(), device)
        self._listeners = listeners

    def flush(self) -> None:
        """Pass the slices to the listeners."""
        if self._listeners:
            for each in self._slices:
                self._listeners(Slice(each.at, each.rank, each.kind, each.seconds, each.seq, each.bytes), each.at)
        self._slices.clear()


class TimedWorkers:
    """One worker for each device. `speeds`: emulated relative speed of each, or empty."""

    def __init__(
        self, devices: Sequence[torch.device], speeds: Sequence[float], parallel: bool, listeners: Listeners
    ) -> None:
        self.devices = tuple(devices)
        self.meters = [ReplicaMeter(rank, device, listeners) for rank, device in enumerate(self.devices)]
        self._slowdowns = [Slowdown(speed) for speed in speeds or (1.0,) * len(self.devices)]
        self._threads = WorkerThreads(len(self.devices), parallel)
        self.begin()

    def begin(self) -> None:
        """Begin a step. A pass whose backward pass is still to come will belong to the step in which that runs."""
        nothing = (0,) * len(self.devices)
        self.step = Work(nothing, nothing, (0.0,) * len(self.devices), whole=False)
        """Sum of the passes whose backward pass has begun."""
        self.busy_s = [0.0] * len(self.devices)
        """Training seconds of each replica that are not in `step`."""

    @property
    def backward(self) -> bool:
        """Return whether a backward pass has begun."""
        return any(self.step.samples)

    def count(self, work: Work) -> None:
        """Add a pass to the step, at the start of its backward pass."""
        self.step = Work(
            tuple(map(add, self.step.samples, work.samples)),
            tuple(map(add, self.step.steps, work.steps)),
            tuple(map(add, self.step.busy_s, work.busy_s)),
            self.step.whole or work.whole,
        )

    def total_busy_s(self) -> tuple[float, ...]:
        """Return the training seconds of each replica in this step."""
        return tuple(map(add, self.step.busy_s, self.busy_s))

    def take_since(self, before: Sequence[float]) -> tuple[float, ...]:
        """Return the training seconds since `before`, and remove them from the step."""
        taken = tuple(map(sub, self.busy_s, before))
        self.busy_s = list(before)
        return taken

    def everywhere(self, kind: str, work: Sequence[Callable[[], Any]], here: Collection[int] = ()) -> list[Any]:
        """Run a function for every rank on its device, and record its time as `kind`. The ranks in `here` run on the
        calling thread. Raises the error of the lowest rank that failed."""
        counted = torch.is_grad_enabled() or kind in WORK
        try:
            return self._threads.run([self._timed(rank, kind, act, counted) for rank, act in enumerate(work)], here)
        except ReplicaFailed as error:
            error.error.add_note(f"on replica {error.rank} ({self.devices[error.rank]})")
            raise error.error from None

    def _timed(self, rank: int, kind: str, work: Callable[[], Any], counted: bool) -> Callable[[], Any]:
        meter, device, slowdown = self.meters[rank], self.devices[rank], self._slowdowns[rank]

        def run() -> Any:
            if device.type == "cuda":
                torch.cuda.set_device(device)
            began = slowdown.begin()
            value = work()
            at = meter.add(kind if counted else "evaluate", began)
            if counted:
                self.busy_s[rank] += slowdown.pay(at - began, meter) - began
            return value

        return run

    def record_exchange(self, since: float, seq: int, size: int) -> None:
        """Record a reduction from `since` until now. `size`: bytes."""
        for meter in self.meters:
            meter.add("exchange", since, seq, size)

    def flush(self) -> None:
        """Pass all slices to the listeners."""
        for meter in self.meters:
            meter.flush()
