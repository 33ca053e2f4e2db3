"""The workers of a distributed graph: a function on all devices at once, its time recorded, and stretched where asked for.

Owns threads, meters and what a step has taken. Must not know a model: what waits for a backward pass holds the workers, and
must not hold the graph that holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from operator import add, sub
from pathlib import Path
from typing import Any

import torch

from ddp.core.events import Slice
from ddp.graph.worker_threads import ReplicaFailed, WorkerThreads
from ddp.process.meter import Meter
from ddp.process.slowdown import Slowdown

Listener = Callable[[Any, float], None]
"""Receives every record (slices, plans, closed windows) with its time."""
WORK = ("backward", "optimizer")
"""Kinds of slice that are always training; others are while gradients are on."""


@dataclass(frozen=True)
class Work:
    """What passes add to a step once their gradients have come, by rank."""

    samples: tuple[int, ...]
    steps: tuple[int, ...]
    busy_s: tuple[float, ...]
    """Of forward passes."""
    whole: bool
    """Whether a window is among them."""


class Listeners:
    """Who receives the records of a graph."""

    def __init__(self, *listeners: Listener | None) -> None:
        self._all = [each for each in listeners if each is not None]

    def __bool__(self) -> bool:
        return bool(self._all)

    def __call__(self, record: Any, at: float) -> None:
        for each in tuple(self._all):
            each(record, at)

    def add(self, listener: Listener) -> Callable[[], None]:
        """Have `listener` receive them as well; return what ends that."""
        self._all.append(listener)

        def end() -> None:
            self._all = [each for each in self._all if each is not listener]

        return end


class ReplicaMeter(Meter):
    """Slices of a replica's time, handed on instead of written."""

    def __init__(self, rank: int, device: torch.device, listeners: Listeners) -> None:
        super().__init__(rank, Path(), device)
        self._listeners = listeners

    def flush(self) -> None:
        """Hand on the slices."""
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
        """Begin a step. A pass whose gradients have not come yet is part of it when they do."""
        nothing = (0,) * len(self.devices)
        self.step = Work(nothing, nothing, (0.0,) * len(self.devices), whole=False)
        """The passes whose gradients have come."""
        self.busy_s = [0.0] * len(self.devices)
        """Seconds of training of each replica that are of no pass in `step`."""

    @property
    def backward(self) -> bool:
        """Return whether gradients have come."""
        return any(self.step.samples)

    def count(self, work: Work) -> None:
        """Add a pass whose gradients come."""
        self.step = Work(
            tuple(map(add, self.step.samples, work.samples)),
            tuple(map(add, self.step.steps, work.steps)),
            tuple(map(add, self.step.busy_s, work.busy_s)),
            self.step.whole or work.whole,
        )

    def total_busy_s(self) -> tuple[float, ...]:
        """Return the seconds of training of each replica in the step."""
        return tuple(map(add, self.step.busy_s, self.busy_s))

    def take_since(self, before: Sequence[float]) -> tuple[float, ...]:
        """Return the seconds since `before`, and take them out of the step."""
        taken = tuple(map(sub, self.busy_s, before))
        self.busy_s = list(before)
        return taken

    def everywhere(self, kind: str, work: Sequence[Callable[[], Any]], here: Collection[int] = ()) -> list[Any]:
        """Run a function for every rank on its device, and record its time as `kind`; the ranks `here` run on the calling
        thread. Raises what the lowest rank raised."""
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
        """Record that the replicas met, from `since` until now; `size` in bytes."""
        for meter in self.meters:
            meter.add("exchange", since, seq, size)

    def flush(self) -> None:
        """Hand on all slices."""
        for meter in self.meters:
            meter.flush()
