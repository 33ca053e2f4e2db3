"""The devices of a distributed graph at work: a function on all of them at once, its time booked and slowed where asked for.

Knows no model: what waits for a backward pass holds the crew, and must not hold the graph that holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ddp.core.events import Slice
from ddp.graph.worker_threads import ReplicaFailed, WorkerThreads
from ddp.process.meter import Meter
from ddp.process.slowdown import Slowdown

Timeline = Callable[[Any, float], None]
"""Receives every record (slices, plans, closed windows) with its time."""
WORK = ("backward", "optimizer")
"""Kinds of slice that are always training; others are where gradients are on."""


@dataclass(frozen=True)
class Work:
    """What a pass adds to a step once its gradients have come; by rank."""

    samples: tuple[int, ...]
    steps: tuple[int, ...]
    busy_s: tuple[float, ...]
    """Of its forward pass."""
    whole: bool
    """It was a window's."""


class ReplicaMeter(Meter):
    """A replica's slices, handed on at once instead of written."""

    def __init__(self, rank: int, device: torch.device, timeline: Timeline | None) -> None:
        super().__init__(rank, Path(), device)
        self._timeline = timeline

    def flush(self) -> None:
        """Hand the slices on."""
        for each in self._slices if self._timeline else ():
            assert self._timeline is not None
            self._timeline(Slice(each.at, each.rank, each.kind, each.seconds, each.seq, each.bytes), each.at)
        self._slices.clear()


class TimedWorkers:
    """One worker for each device. `speeds`: emulated relative speed of each, or empty."""

    def __init__(
        self, devices: Sequence[torch.device], speeds: Sequence[float], parallel: bool, timeline: Timeline | None
    ) -> None:
        self.devices = tuple(devices)
        self.watches = [ReplicaMeter(rank, device, timeline) for rank, device in enumerate(self.devices)]
        self._slow = [Slowdown(speed) for speed in speeds or (1.0,) * len(self.devices)]
        self._team = WorkerThreads(len(self.devices), parallel)
        self.begin()

    def begin(self) -> None:
        """A step begins. A pass whose gradients have not come yet is part of it when they do."""
        size = len(self.devices)
        self.samples, self.steps = [0] * size, [0] * size
        """Of the passes whose gradients have come."""
        self.busy_s = [0.0] * size
        """Seconds of training of each replica in the step."""
        self.whole = False
        """Whether the gradients of a window are among them."""

    @property
    def backward(self) -> bool:
        """Whether gradients have come."""
        return any(self.samples)

    def count(self, work: Work) -> None:
        """The gradients of a pass come."""
        for rank in range(len(self.devices)):
            self.samples[rank] += work.samples[rank]
            self.steps[rank] += work.steps[rank]
            self.busy_s[rank] += work.busy_s[rank]
        self.whole = self.whole or work.whole

    def taken(self, before: Sequence[float]) -> tuple[float, ...]:
        """Take the seconds since `before` out of the step."""
        taken = tuple(after - was for after, was in zip(self.busy_s, before, strict=True))
        self.busy_s = list(before)
        return taken

    def everywhere(self, kind: str, work: Sequence[Callable[[], Any]], here: Collection[int] = ()) -> list[Any]:
        """Run a function for every rank, each on its device, and book its time; raises what the lowest rank raised.
        The ranks `here` run on the calling thread."""
        counted = torch.is_grad_enabled() or kind in WORK
        try:
            return self._team.run([self._timed(rank, kind, one, counted) for rank, one in enumerate(work)], here)
        except ReplicaFailed as error:
            error.error.add_note(f"on replica {error.rank} ({self.devices[error.rank]})")
            raise error.error from None

    def _timed(self, rank: int, kind: str, work: Callable[[], Any], counted: bool) -> Callable[[], Any]:
        watch, device = self.watches[rank], self.devices[rank]

        def run() -> Any:
            if device.type == "cuda":
                torch.cuda.set_device(device)
            began = self._slow[rank].begin()
            value = work()
            at = watch.add(kind if counted else "evaluate", began)
            if counted:
                self.busy_s[rank] += self._slow[rank].pay(at - began, watch) - began
            return value

        return run

    def met(self, since: float, seq: int, size: int) -> None:
        """The replicas have met, from `since` until now."""
        for watch in self.watches:
            watch.add("exchange", since, seq, size)

    def flush(self) -> None:
        """Hand all slices on."""
        for watch in self.watches:
            watch.flush()
