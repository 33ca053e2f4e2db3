"""Sets the learning rates of a graph's optimizers: fixed, by step, or by the samples that all replicas have seen.

Owns the meaning of a scheduler. Must not know replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from ddp.graph.errors import GraphError
from ddp.replica.optim.learning_rates import ROUNDING, a_schedule, in_ratio, own_rates, set_rates, sound
from ddp.replica.optim.lr_schedule import LRSchedule
from ddp.settings import whole


class StepSchedule(Protocol):
    """A schedule as an object with a method."""

    def lr(self, step: int) -> float:
        """Return the learning rate of `step`, counted from 0."""
        ...


Schedule = Callable[[int], float] | Callable[[float], float] | StepSchedule


class GraphRates:
    """Sets the learning rates of all optimizers. A rate is that of the first parameter group; other groups keep their ratio
    to it."""

    def __init__(self) -> None:
        self._optimizers: list[torch.optim.Optimizer] = []
        self._own: list[list[float]] = []
        """Initial learning rates of each optimizer, by parameter group."""
        self._rate: Callable[[int], float] | None = None
        """Step -> learning rate."""
        self._factor: Callable[[float], float] | None = None
        """Fraction of `_samples` seen -> factor on the optimizers' own rates."""
        self._samples = 1
        self._scale = 1.0

    def steer(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Set the learning rates of these optimizers from now on."""
        self._optimizers = list(optimizers)
        self._own = [own_rates(optimizer) for optimizer in optimizers]

    @property
    def first(self) -> float:
        """Return the learning rate of the first parameter group; 0 without an optimizer."""
        return float(self._optimizers[0].param_groups[0]["lr"]) if self._optimizers else 0.0

    def apply(self, step: int, seen: int) -> None:
        """Set the learning rates of `step`. `seen`: samples trained before it."""
        if self._factor is not None:
            factor = sound("the scheduler's factor", self._factor(min(seen / self._samples, 1.0)), ROUNDING)
            for optimizer, own in zip(self._optimizers, self._own, strict=True):
                set_rates(optimizer, [lr * factor * self._scale for lr in own])
        elif self._rate is not None:
            self._set(sound("the scheduler's learning rate", self._rate(step)) * self._scale)

    def _set(self, rate: float) -> None:
        for optimizer, own in zip(self._optimizers, self._own, strict=True):
            set_rates(optimizer, in_ratio(rate, own))

    def fix(self, lr: float) -> None:
        """Set the learning rate to `lr`, and remove the schedule. Raise GraphError if there is no optimizer."""
        if not self._optimizers:
            raise GraphError("no optimizer to set the learning rate of: call ddp.setup, or set_optimizer, first")
        self._rate = self._factor = None
        self._set(sound("the learning rate", lr))

    def follow(self, schedule: Schedule, samples: int | None) -> None:
        """Use a schedule over steps; or, with `samples` of the whole training, a schedule over the fraction of them
        seen. Raise ValueError for anything that is no schedule."""
        if samples is not None:
            self._samples = whole("samples", samples, 1)
            self._rate, self._factor = None, a_schedule(schedule)
            return
        if isinstance(schedule, LRSchedule):
            raise ValueError(
                "an LRSchedule goes by samples: give samples=, those of the whole training (epochs x data)"
            )
        by_step = schedule if callable(schedule) else getattr(schedule, "lr", None)
        if not callable(by_step):
            raise ValueError(
                f"a scheduler is a function of the step, or has a method lr(step); {schedule!r} is neither"
            )
        self._rate, self._factor = by_step, None

    def rescale(self, scale: float) -> None:
        """Multiply the schedule's learning rates by `scale`."""
        self._scale = sound("the scale of the learning rate", scale)
