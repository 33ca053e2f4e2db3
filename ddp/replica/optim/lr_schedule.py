"""`LRSchedule`: turns a PyTorch learning-rate scheduler into a function of the samples seen, for every way of training.

Owns the table of factors. Must not know who trains."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ddp.replica.optim.learning_rates import sound
from ddp.settings import number, whole

MOST = 10_000_000
"""Most steps of a scheduler."""
CLOSE = 1e-9
"""Tolerance between a fraction of the samples and the one at which a scheduler step begins."""
_isclose = partial(math.isclose, abs_tol=1e-12)


class LRSchedule:
    """A scheduler of `torch.optim.lr_scheduler` as a function of the fraction of all training samples seen.

        schedule = ddp.LRSchedule(lambda optimizer: MultiStepLR(optimizer, [100, 150], gamma=0.1), steps=200)
        Trainer(..., schedule=schedule)             # and worker.set_scheduler(schedule)
        graph.set_scheduler(schedule, samples=200 * len(dataset))

    `steps`: how often the scheduler steps in the whole training, such as once an epoch; its `k`-th rate holds from the
    fraction `k / steps` of the samples on. `lr`: rate of the optimizer that the scheduler is made for; factors are the
    scheduler's rates divided by `lr`. A scheduler of absolute rates, such as OneCycleLR, needs it. Raises ValueError for
    one without it, and for a scheduler that follows a loss (ReduceLROnPlateau) or changes more than the rate (OneCycleLR
    and CyclicLR: give them cycle_momentum=False).
    """

    def __init__(self, make: Callable[[torch.optim.Optimizer], Any], steps: int, lr: float | None = None) -> None:
        self.steps = whole("steps", steps, 1, MOST)
        self.make, self.lr = make, 1.0 if lr is None else number("lr", lr, 1e-12)
        rates = self._rates(self.lr)
        if lr is None and not all(map(_isclose, self._rates(2.0), (2.0 * rate for rate in rates))):
            raise ValueError(
                "LRSchedule: the scheduler gives absolute rates, not multiples of the optimizer's: give lr=, the rate "
                "of the optimizer that it is made for"
            )
        self._factors = tuple(sound("a factor of the scheduler", rate / self.lr) for rate in rates)

    def _rates(self, lr: float) -> list[float]:
        """Return the rate of each step for an optimizer that has `lr`. Raises ValueError."""
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=lr, momentum=0.9)
        (group,) = optimizer.param_groups
        try:
            scheduler, rates = self.make(optimizer), list[float]()
            before = {name: value for name, value in group.items() if name in ("momentum", "weight_decay")}
            others = False
            for _ in range(self.steps):
                rates.append(float(group["lr"]))
                optimizer.step()
                scheduler.step()
                others |= {name: group[name] for name in before} != before
        except Exception as error:  # whatever it raises for an optimizer of one parameter
            why = " ".join(f"{type(error).__name__}: {error}".split())
            raise ValueError(
                "LRSchedule takes a function that makes a scheduler of torch.optim.lr_scheduler for an optimizer, one that "
                f"steps {self.steps} times without a loss ({why:.160})"
            ) from error
        if others:
            raise ValueError(
                f"{type(scheduler).__name__} changes more than the learning rate: give it cycle_momentum=False"
            )
        return rates

    def __call__(self, seen: float) -> float:
        """Return the factor on the learning rate once the fraction `seen` of all samples, in [0, 1], is trained."""
        return self._factors[min(max(math.floor(seen * self.steps + CLOSE), 0), self.steps - 1)]
