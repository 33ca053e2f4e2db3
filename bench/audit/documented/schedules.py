"""Learning rate schedules as functions of the samples seen. PyTorch schedulers are stepped here. Must not use the
engine."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ddp.replica.optim.lr_schedule import LRSchedule

CLOSE = 1e-9
"""Tolerance of the fraction of samples at which a scheduler's next step begins."""


def stepped(schedule: Callable[[float], float]) -> Callable[[float], float]:
    """Return a schedule as a function of the fraction of all samples seen. A user's PyTorch scheduler is created anew;
    its k-th rate holds from fraction k / steps on."""
    if not isinstance(schedule, LRSchedule):
        return schedule
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=schedule.lr, momentum=0.9)
    scheduler, factors = schedule.make(optimizer), list[float]()
    for _ in range(schedule.steps):
        factors.append(float(optimizer.param_groups[0]["lr"]) / schedule.lr)
        optimizer.step()
        scheduler.step()
    return lambda seen: factors[min(int(seen * len(factors) + CLOSE), len(factors) - 1)]
