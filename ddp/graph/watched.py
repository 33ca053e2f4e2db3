"""What a graph's training tells to timelines and monitors: who listens, what each replica has trained, when.

Owns the totals, and the slices of a graph on one device, whose backward pass is the caller's. Must not know who listens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ddp.core.events import Ready
from ddp.graph.scatter import leaves
from ddp.graph.timed_workers import Listener, Listeners, ReplicaMeter, TimedWorkers
from ddp.process.clock import now


@dataclass
class ReplicaWork:
    """What one replica has trained so far."""

    steps: int = 0
    samples: int = 0
    busy_s: float = 0.0


class TrainingRecord:
    """The record of a graph's training."""

    def __init__(self) -> None:
        self.listeners = Listeners()
        self.work = [ReplicaWork()]
        self._meter: ReplicaMeter | None = None
        self._began: float | None = None
        """When the first pass with gradient began whose step is to come, on one device; and the last mark since."""
        self._at: float | None = None
        self._samples = 0
        """Of the passes since."""

    @property
    def seen(self) -> int:
        """Return the samples of all replicas so far."""
        return sum(each.samples for each in self.work)

    def listen(self, listener: Listener, ready: Sequence[Ready], plan: Any) -> Callable[[], None]:
        """Have `listener` receive what happens from now on, and what is the case now; return what ends that."""
        for record in (*ready, *(() if plan is None else (plan,))):
            listener(record, now())
        return self.listeners.add(listener)

    def distribute(self, size: int) -> None:
        """Begin with replicas."""
        self.work = [ReplicaWork() for _ in range(size)]

    def add(self, workers: TimedWorkers) -> None:
        """Add the step that replicas have just done."""
        step = workers.step
        columns = zip(self.work, step.steps, step.samples, workers.total_busy_s(), strict=True)
        for work, steps, count, busy_s in columns:
            work.steps, work.samples, work.busy_s = work.steps + steps, work.samples + count, work.busy_s + busy_s

    def begin_pass(self, inputs: tuple[Any, ...], device: torch.device) -> None:
        """Note that a pass with gradient begins on one device."""
        self._samples += next((len(leaf) for leaf in leaves(inputs) if leaf.dim()), 0)
        if self.listeners and self._meter is None:
            self._meter = ReplicaMeter(0, device, self.listeners)
        self._mark("backward")
        self._at = now()
        self._began = self._at if self._began is None else self._began

    def end_pass(self) -> None:
        """Note that it is done."""
        self._mark("forward")

    def begin_step(self) -> None:
        """Note that the step begins, as the backward pass is over."""
        self._mark("backward")

    def end_step(self) -> None:
        """Note that the step is done."""
        self._mark("optimizer")
        work, began = self.work[0], self._began
        work.steps, work.samples, self._samples = work.steps + 1, work.samples + self._samples, 0
        work.busy_s += 0.0 if began is None else now() - began
        self._began = self._at = None
        if self._meter is not None:
            self._meter.flush()

    def _mark(self, kind: str) -> None:
        """Note that what was done since the last mark of the step was of `kind`."""
        if self._at is not None:
            self._at = now() if self._meter is None else self._meter.add(kind, self._at)
