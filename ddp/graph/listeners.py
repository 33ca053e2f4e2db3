"""Reports a graph's training to timelines and monitors: its listeners, and what each replica has trained, when.

Owns the totals, and the time slices of a graph on one device, whose backward pass the caller runs. Must not know the
listeners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ddp.core.messages.events import Ready
from ddp.graph.scatter import leaves
from ddp.graph.timed_workers import Listener, Listeners, ReplicaMeter, TimedWorkers
from ddp.process.clock import now


@dataclass
class ReplicaWork:
    """The work of one replica so far. `busy_s`: seconds of training."""

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
        """On one device: start of the first training pass since the last step. `_at`: end of its last slice."""
        self._at: float | None = None
        self._samples = 0
        """Samples of the passes since the last step."""

    @property
    def seen(self) -> int:
        """Return the number of samples that all replicas have trained so far."""
        return sum(each.samples for each in self.work)

    def listen(self, listener: Listener, ready: Sequence[Ready], plan: Any) -> Callable[[], None]:
        """Send the present state to `listener`, and every record from now on. Return a function that removes the
        listener."""
        for record in (*ready, *(() if plan is None else (plan,))):
            listener(record, now())
        return self.listeners.add(listener)

    def distribute(self, size: int) -> None:
        """Reset the totals to `size` replicas."""
        self.work = [ReplicaWork() for _ in range(size)]

    def add(self, workers: TimedWorkers) -> None:
        """Add the work of the replicas' last step."""
        step = workers.step
        columns = zip(self.work, step.steps, step.samples, workers.total_busy_s(), strict=True)
        for work, steps, count, busy_s in columns:
            work.steps, work.samples, work.busy_s = work.steps + steps, work.samples + count, work.busy_s + busy_s

    def begin_pass(self, inputs: tuple[Any, ...], device: torch.device) -> None:
        """Note the start of a training forward pass on one device."""
        self._samples += _samples(inputs)
        self._measure(device)
        self._mark("backward")
        self._at = now()
        self._began = self._at if self._began is None else self._began

    def count_if_trained(
        self, inputs: tuple[Any, ...], output: Any, parameters: Iterable[Tensor], device: torch.device, began: float
    ) -> None:
        """Count a forward pass on one device, begun at `began`, only when a backward pass begins that fills gradients of
        `parameters`: in evaluation mode it may be an evaluation."""
        waiting, trained = [_samples(inputs)], [p for p in parameters if p.requires_grad]

        def count(_: Tensor) -> None:
            nodes = (torch.autograd.graph.get_gradient_edge(parameter).node for parameter in trained)
            if waiting and any(torch._C._will_engine_execute_node(node) for node in nodes):
                self._samples += waiting.pop()
                self._measure(device)
                self._at = began if self._at is None else self._at
                self._mark("forward")  # and what the loss took
                self._began = began if self._began is None else self._began

        for leaf in leaves(output):
            if leaf.requires_grad:
                leaf.register_hook(count)  # type: ignore[no-untyped-call]

    def _measure(self, device: torch.device) -> None:
        if self.listeners and self._meter is None:
            self._meter = ReplicaMeter(0, device, self.listeners)

    def end_pass(self) -> None:
        """Note the end of a forward pass."""
        self._mark("forward")

    def begin_step(self) -> None:
        """Note the start of the optimizer's step, which ends the backward pass."""
        self._mark("backward")

    def end_step(self) -> None:
        """Note the end of the optimizer's step."""
        self._mark("optimizer")
        work, began = self.work[0], self._began
        work.steps, work.samples, self._samples = work.steps + 1, work.samples + self._samples, 0
        work.busy_s += 0.0 if began is None else now() - began
        self._began = self._at = None
        if self._meter is not None:
            self._meter.flush()

    def _mark(self, kind: str) -> None:
        """Record the time since the last mark as a slice of `kind`."""
        if self._at is not None:
            self._at = now() if self._meter is None else self._meter.add(kind, self._at)


def _samples(inputs: tuple[Any, ...]) -> int:
    return next((len(leaf) for leaf in leaves(inputs) if leaf.dim()), 0)
