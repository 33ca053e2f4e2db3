"""The learning rates of a replica: one function of the samples that the cohort has seen, and what a callback changes in it.

    rate of a parameter group = its own rate x scale x schedule(fraction of samples seen) x what `multiply` has made

`fix` puts a number in place of the first three, until `follow` gives a schedule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

Schedule = Callable[[float], float]
"""Fraction of all training samples seen, in [0, 1] -> factor on the learning rate."""
ROUNDING = 1e-9
"""A factor that is below zero by no more than this is zero."""

OVERWRITTEN = (
    ", which is set anew before every step: leave out the scheduler's step(), and give schedule=lambda seen: factor, of the "
    "fraction of samples seen, or use set_lr, scale_lr or set_scheduler in epoch_callback"
)


class Rates:
    """Sets the rates of `optimizer`, whose own are those at schedule 1."""

    def __init__(self, optimizer: torch.optim.Optimizer, schedule: Schedule, scale: float) -> None:
        self._optimizer = optimizer  # not its groups: they are other ones after `load_state_dict`
        self._own = [sound("the learning rate of the optimizer", group["lr"]) for group in optimizer.param_groups]
        self._schedule, self._scale, self._rescaled = schedule, scale, False
        self._fixed: float | None = None
        self._factor = 1.0
        self._follows = False
        """Whether a callback has set the schedule."""
        self._set: list[float] = []
        """The rates that `apply` has set last."""

    def check(self) -> None:
        """Raise ValueError if a rate is not what `apply` has set it to."""
        self._refuse_others(self._set, "step")

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Raise ValueError if a callback inside sets the rates of the optimizer itself."""
        before = [group["lr"] for group in self._optimizer.param_groups]
        yield
        self._refuse_others(before, "callback")

    def _refuse_others(self, rates: list[float], who: str) -> None:
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            if group["lr"] != rate:
                raise ValueError(f"the {who} set the learning rate to {float(group['lr']):.6g}{OVERWRITTEN}")

    def steer(self, optimizer: torch.optim.Optimizer) -> None:
        """Set the rates of another optimizer from now on, one with the same parameter groups."""
        self._optimizer = optimizer

    def at(self, fraction: float) -> float:
        """Return the rate of the first parameter group once `fraction` of the samples are seen."""
        return self._all(fraction)[0]

    def apply(self, fraction: float) -> float:
        """Set the rates of all parameter groups; return that of the first one."""
        rates = self._set = self._all(fraction)
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        return rates[0]

    def _all(self, fraction: float) -> list[float]:
        if self._fixed is None:
            factor = self._scheduled(fraction) * self._scale * self._factor
            return [rate * factor for rate in self._own]
        first = self._own[0]
        return [self._fixed * self._factor * (rate / first if first else 1.0) for rate in self._own]

    def _scheduled(self, fraction: float) -> float:
        given = self._schedule(fraction)
        return sound(f"what the schedule gives for the fraction {fraction:.6g} of the samples", given, ROUNDING)

    def capture(self) -> tuple[float | None, float, float | None, bool]:
        """Return what callbacks have set: (fixed rate, factor, scale, whether a schedule). The schedule itself is code,
        and not among it; nor is a scale that came with the number of ranks, which may be another one then."""
        return self._fixed, self._factor, self._scale if self._rescaled else None, self._follows

    def restore(self, captured: tuple[float | None, float, float | None, bool]) -> bool:
        """Take over what was captured; return whether a schedule is missing. Raises ValueError or TypeError for what
        cannot be."""
        fixed, factor, scale, follows = captured
        self._fixed = None if fixed is None else sound("a learning rate", fixed)
        self._factor = sound("a factor on the learning rate", factor)
        if scale is not None:
            self.rescale(scale)
        return follows

    def fix(self, rate: float) -> None:
        """Train with `rate` in the first group, whatever the schedule and scale; others keep their proportion."""
        self._fixed, self._factor = sound("a learning rate", rate), 1.0

    def multiply(self, factor: float) -> None:
        """Multiply all rates from now on, on top of the schedule or of a fixed rate."""
        self._factor *= sound("a factor on the learning rate", factor)

    def rescale(self, scale: float) -> None:
        """Replace the scale that came with the number of ranks."""
        self._scale, self._rescaled = sound("the scale of the learning rate", scale), True

    def follow(self, schedule: Schedule) -> None:
        """Follow another schedule; what `fix` and `multiply` did before ends."""
        if not callable(schedule):
            raise ValueError(f"a schedule is a function of the fraction of samples seen, not {schedule!r}")
        self._schedule, self._fixed, self._factor, self._follows = schedule, None, 1.0, True


def a_schedule(given: Any) -> Schedule:
    """Return `given`, if a call shows that it is a schedule. Raises ValueError for others, such as a scheduler of
    PyTorch."""
    try:
        sound("its factor", given(0.0), ROUNDING)
    except Exception as error:  # whatever it does with a fraction
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(
            "schedule must be a function of the fraction of all training samples seen, from 0 to 1, that gives a factor on "
            f"the learning rate, such as lambda seen: 0.5 ** (seen // 0.25); {given!r:.80} is none ({why:.160})"
        ) from error
    schedule: Schedule = given
    return schedule


def sound(what: str, value: Any, below: float = 0.0) -> float:
    """Return `value`, a rate or a factor on one; 0 if it is less by no more than `below`. Raises ValueError for what is
    none."""
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):  # the last is torch's, of a tensor of several elements
        number = math.nan
    if not (math.isfinite(number) and number >= -below):
        raise ValueError(f"{what} must be a finite number of 0 or more, not {value!r:.60}")
    return max(number, 0.0)
