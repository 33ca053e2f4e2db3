"""A replica of the graph engine. It accumulates gradients over its batches of a window; after the reduction it steps.

Owns one replica's part of a window. Must not know who reduces the gradients, nor when.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ddp.core.samples.spans import Batch
from ddp.gradients.step_gradients import StepGradients
from ddp.graph.serialized_rng import SerializedRng
from ddp.process.clock import now
from ddp.replica.evidence.step_sketches import StepSketches, whole
from ddp.replica.gradient_sync import moved
from ddp.replica.memory.shared_gradients import separate
from ddp.replica.replica import Replica
from ddp.replica.sparse import dense


class Accumulating(Replica):
    """A replica that accumulates gradients over a window. Set `gradients` and `turns` before its first step. It applies the
    update of a window when the next window begins."""

    windowed = True
    """Its batches are parts of a step of all replicas, so a batch does not end a step."""

    def __init__(self, *made_of: Any) -> None:
        super().__init__(*made_of)
        self.gradients: StepGradients | None = None
        self.turns = SerializedRng((self._device,))
        self.own = 0
        """Number of samples of this replica in the window."""
        self.busy_s = 0.0
        """Seconds of work of this replica in the window."""
        self._due = False
        self._due_samples = 0, 0
        """Samples of this replica and of all replicas, in the window whose update is due."""
        if not self._job.policy.every_step:  # windows are few: record every one
            self.step_sketches = StepSketches(self.sketcher, 0, 0)

    def begin(self, samples: int) -> None:
        """Begin a window in which this replica trains `samples` samples."""
        self.own, self.busy_s = samples, 0.0

    def step(self, batch: Batch, seen: float) -> tuple[Tensor | None, float]:
        """Accumulate the gradients of a batch, weighted by its share of this replica's samples. Return (mean loss, busy
        seconds)."""
        began = self._slowdown.begin()
        self.update(counted=False)
        self.lr = self.rates.apply(self.fraction(seen))
        at, parts, losses = now(), self.passes.cut(batch), []
        for part in parts:
            loss, at, waited = self._add_gradients(part, at)
            began += waited
            losses.append(loss if len(parts) == 1 else loss.detach() * (part.samples / batch.samples))
        at = self._slowdown.pay(at - began, self._meter)
        self.busy_s += at - began
        mean = losses[0] if len(parts) == 1 else torch.stack(losses).sum(0)
        return None if self.passes.overflows(self.optimizer, mean) else mean, at - began

    def _add_gradients(self, batch: Batch, at: float) -> tuple[Tensor, float, float]:
        """Accumulate the gradients of one pass. Return (mean loss, time at the end, seconds of waiting for the random
        generator)."""
        meter = self._meter
        part = batch.samples / self.own
        earlier = self._put_aside() if part < 1.0 else []
        base = self._epoch(batch.epoch)
        with self.turns.of(lambda: (base + batch.start) & 0x7FFF_FFFF_FFFF_FFFF, self._device):
            at, waited = self._turn(at)
            tensors = self.read(batch)
            at = meter.add("data", at)
            self.parameter_guard.begin()
            self.scalars.begin()
            with self.scalars:
                self.figures.counting(tensors, batch.samples)
                loss = self.passes.loss(self.task, self.model, tensors)
        at = meter.add("forward", at)
        separate(self.state.parameters)  # gradients of a backward() inside the user's loss
        for parameter in self.state.parameters if part < 1.0 else ():
            if parameter.grad is not None:
                parameter.grad *= part
        factor = part * self.passes.loss_scale
        with self.turns.back(self._device):
            at, more = self._turn(at)
            (loss if factor == 1.0 else loss * factor).backward()  # type: ignore[no-untyped-call]
        self.parameter_guard.end()
        _add_to(earlier)
        return loss, meter.add("backward", at), waited + more

    def _turn(self, at: float) -> tuple[float, float]:
        """Return (time, seconds since `at`), now that the random generator is this replica's, if replicas take turns."""
        began, at = at, self._meter.add("wait", at) if self.turns.taken else at
        return at, at - began

    def _put_aside(self) -> Sequence[tuple[Tensor, Tensor]]:
        """Remove the window's gradients from the parameters, because the user's loss may clear them. Return (parameter,
        gradient) pairs."""
        separate(self.state.parameters)  # the next batch is added to them in place
        pairs = [(p, dense(p.grad)) for p in self.state.parameters if p.grad is not None]
        for parameter, _ in pairs:
            parameter.grad = None
        return pairs

    def contribute(self, total: int, seen: float) -> float:
        """Weight this replica's gradients by its share of a window of `total` samples. `seen`: samples trained before the
        window. Return the time at the end."""
        assert self.gradients is not None
        began = now()
        self.lr = self.rates.apply(self.fraction(seen))  # also if this replica had no batch
        self.step_sketches.begin()
        self.step_sketches.add(whole(self.state.parameters))
        self.step_sketches.exchange()
        with torch.no_grad():
            self.gradients.pack(self.own / total)
        self._due, self._due_samples = True, (self.own, total)
        return self._meter.add("copy", began)

    def update(self, counted: bool = True) -> None:
        """Step the optimizer with the reduced gradients, if an update is due. `counted`: add the time of the step to the
        slowdown, because no batch does so."""
        if not self._due:
            return
        assert self.gradients is not None
        self._due, began = False, self._slowdown.begin()
        with torch.no_grad():
            self.gradients.unpack()
        self.step_sketches.end(*self._due_samples, whole(self.state.parameters))
        if self.passes.ready(self.optimizer, None):
            self.figures.step(self.optimizer)
            if self._job.max_grad_norm is not None:
                torch.nn.utils.clip_grad_norm_(moved(self.state, self.optimizer), self._job.max_grad_norm)
            self.optimizer.step()
        self.gradients.clear()
        at = self._meter.add("optimizer", began)
        if counted:
            self._slowdown.pay(at - began, self._meter, "optimizer")


def _add_to(earlier: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Add a batch's gradients to the gradients of the window, in place."""
    for parameter, gradient in earlier:
        if parameter.grad is not None:
            gradient.add_(parameter.grad)
        parameter.grad = gradient
