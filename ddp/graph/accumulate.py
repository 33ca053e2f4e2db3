"""A replica of the engine: its gradients accumulate over its batches until the replicas have met, then it steps.

Owns its part of a window. Must not know who reduces, nor when.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ddp.core.spans import Batch
from ddp.gradients.step_gradients import StepGradients
from ddp.graph.serialized_rng import SerializedRng
from ddp.process.clock import now
from ddp.replica.gradient_sync import moved
from ddp.replica.replica import Replica
from ddp.replica.sparse import dense
from ddp.replica.step_sketches import StepSketches, whole


class Accumulating(Replica):
    """A replica that is given `gradients` and `turns` before its first step, and updates its model of a window when the
    next one begins."""

    windowed = True
    """Its batches are parts of a step of all replicas, which others begin and end."""

    def __init__(self, *made_of: Any) -> None:
        super().__init__(*made_of)
        self.gradients: StepGradients | None = None
        self.turns = SerializedRng((self._device,))
        self.own = 0
        """Samples of this replica in the window."""
        self.busy_s = 0.0
        """Seconds of work in it."""
        self._due = False
        self._due_samples = 0, 0
        """Samples of this replica, and of all, in the window that is due."""
        if not self._job.policy.every_step:  # windows are few
            self.step_sketches = StepSketches(self.sketcher, 0, 0)

    def begin(self, samples: int) -> None:
        """Begin a window in which this replica has `samples`."""
        self.own, self.busy_s = samples, 0.0

    def step(self, batch: Batch, seen: float) -> tuple[Tensor | None, float]:
        """Add the gradients of a batch, as its part of the mean over the replica's samples; return (mean loss, busy
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
        return losses[0] if len(parts) == 1 else torch.stack(losses).sum(0), at - began

    def _add_gradients(self, batch: Batch, at: float) -> tuple[Tensor, float, float]:
        """Add the gradients of one pass; return (mean loss, when it was done, seconds of waiting for others' turns)."""
        meter, waited = self._meter, 0.0
        part = batch.samples / self.own
        earlier = self._put_aside() if part < 1.0 else []
        base = self._epoch(batch.epoch)
        with self.turns.of(lambda: (base + batch.start) & 0x7FFF_FFFF_FFFF_FFFF, self._device):
            if self.turns.taken:
                waited, at = -at, meter.add("wait", at)
                waited += at
            tensors = self.read(batch)
            at = meter.add("data", at)
            self.parameter_guard.begin()
            self.scalars.begin()
            with self.scalars:
                self.figures.counting(tensors, batch.samples)
                loss = self.passes.loss(self.task, self.model, tensors)
        at = meter.add("forward", at)
        for parameter in self.state.parameters if part < 1.0 else ():
            if parameter.grad is not None:  # of a backward pass inside the user's loss
                parameter.grad *= part
        factor = part * self.passes.loss_scale
        (loss if factor == 1.0 else loss * factor).backward()  # type: ignore[no-untyped-call]
        self.parameter_guard.end()
        _add_to(earlier)
        return loss, meter.add("backward", at), waited

    def _put_aside(self) -> Sequence[tuple[Tensor, Tensor]]:
        """Take the window's gradients out of reach of the user's loss, which may clear them; return the pairs."""
        pairs = [(p, dense(p.grad)) for p in self.state.parameters if p.grad is not None]
        for parameter, _ in pairs:
            parameter.grad = None
        return pairs

    def contribute(self, total: int, seen: float) -> float:
        """Weigh this replica's part of a window of `total` samples, which began with `seen`; return when it is done."""
        assert self.gradients is not None
        began = now()
        self.lr = self.rates.apply(self.fraction(seen))  # also of one that had no batch
        self.step_sketches.begin()
        self.step_sketches.add(whole(self.state.parameters))
        self.step_sketches.exchange()
        with torch.no_grad():
            self.gradients.pack(self.own / total)
        self._due, self._due_samples = True, (self.own, total)
        return self._meter.add("copy", began)

    def update(self, counted: bool = True) -> None:
        """Step with what has been reduced, if anything. `counted`: no step of a batch counts the time."""
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
    """Add a batch's gradients to those of the window, in their place."""
    for parameter, gradient in earlier:
        if parameter.grad is not None:
            gradient.add_(parameter.grad)
        parameter.grad = gradient
