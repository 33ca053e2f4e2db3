"""A replica of the engine: its gradients accumulate over batches of its own until the replicas have met, then it steps.

Knows its own part of a window; who reduces, and when, is the engine's business.
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
from ddp.replica.in_step import moved
from ddp.replica.replica import Replica


class Accumulating(Replica):
    """`gradients` and `turns` are given before the first step. The update of a window is made when the next one begins."""

    def __init__(self, *made_of: Any) -> None:
        super().__init__(*made_of)
        self.gradients: StepGradients | None = None
        self.turns = SerializedRng((self._device,))
        self.own = 0
        """Samples of this replica in the window."""
        self.busy_s = 0.0
        """Seconds of work in it."""
        self._due = False

    def begin(self, samples: int) -> None:
        """A window of so many samples of its own begins."""
        self.own, self.busy_s = samples, 0.0

    def step(self, batch: Batch, seen: float) -> tuple[Tensor | None, float]:
        """Add the gradients of a batch, as its part of the mean over the replica's samples; (mean loss, busy seconds)."""
        began = self._slowdown.begin()
        self.spend(counted=False)
        meter, at = self._meter, now()
        part = batch.samples / self.own
        kept = self._put_aside() if part < 1.0 else []
        self.lr = self.rates.apply(self.fraction(seen))
        base = self._epoch(batch.epoch)
        with self.turns.of(lambda: (base + batch.start) & 0x7FFF_FFFF_FFFF_FFFF, self._device):
            if self.turns.taken:
                waited = at
                at = meter.add("wait", at)
                began += at - waited
            tensors = self.feed.get(batch)
            at = meter.add("data", at)
            self.untouched.begin()
            with self.scalars:
                loss: Tensor = self.task.loss(self.model, tensors)
        at = meter.add("forward", at)
        for parameter, _ in kept:
            if parameter.grad is not None:  # of a backward pass inside the user's loss
                parameter.grad *= part
        (loss if part == 1.0 else loss * part).backward()  # type: ignore[no-untyped-call]
        self.untouched.end()
        _add_to(kept)
        at = self._slowdown.pay(meter.add("backward", at) - began, meter)
        self.busy_s += at - began
        return loss, at - began

    def _put_aside(self) -> Sequence[tuple[Tensor, Tensor]]:
        """Take the window's gradients out of reach of the user's loss, which may clear them; (parameter, its gradient)."""
        kept = [(p, p.grad) for p in self.state.parameters if p.grad is not None]
        for parameter, _ in kept:
            parameter.grad = None
        return kept

    def bring(self, total: int, seen: float) -> float:
        """Lay down what this replica brings into a window of `total` samples, which began with `seen`; when it is there."""
        assert self.gradients is not None
        began = now()
        self.lr = self.rates.apply(self.fraction(seen))  # also of one that had no batch
        with torch.no_grad():
            self.gradients.pack(self.own / total)
        self._due = True
        return self._meter.add("copy", began)

    def spend(self, counted: bool = True) -> None:
        """Step with what has been reduced, if there is something. `counted`: where no step of a batch counts the time."""
        if not self._due:
            return
        assert self.gradients is not None
        self._due, began = False, self._slowdown.begin()
        with torch.no_grad():
            self.gradients.unpack()
        if self._job.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(moved(self.state, self.optimizer), self._job.max_grad_norm)
        self.optimizer.step()
        self.gradients.clear()
        at = self._meter.add("optimizer", began)
        if counted:
            self._slowdown.pay(at - began, self._meter, "optimizer")


def _add_to(kept: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Add a batch's gradients to those of the window, in their place."""
    for parameter, gradient in kept:
        if parameter.grad is not None:
            gradient.add_(parameter.grad)
        parameter.grad = gradient
