"""Sets a replica's learning rates: a function of the samples seen by all ranks, which a callback may change.

    rate of a parameter group = its own rate x scale x schedule(fraction of samples seen) x product of `multiply` calls

`fix` replaces the first three factors by a number, until `follow` sets a schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

Schedule = Callable[[float], float]
"""Fraction of all training samples seen, in [0, 1] -> factor on the learning rate."""
ROUNDING = 1e-9
"""A factor below zero by no more than this counts as zero."""

OVERWRITTEN = (
    ", which is set anew before every step: leave out the scheduler's step(), and give schedule=lambda seen: factor, of the "
    "fraction of samples seen, or use set_lr, scale_lr or set_scheduler in epoch_callback"
)


class Rates:
    """Sets the rates of `optimizer`, which was created with the rates for schedule 1."""

    def __init__(self, optimizer: torch.optim.Optimizer, schedule: Schedule, scale: float) -> None:
        self._optimizer = optimizer  # not the groups themselves: `load_state_dict` replaces them
        self._own = own_rates(optimizer)
        self._schedule, self._scale, self._rescaled = schedule, scale, False
        self._fixed: float | None = None
        self._factor = 1.0
        self._follows = False
        """Whether a callback has replaced the schedule."""
        self._set: list[float] = []
        """The rates of the last `apply`."""

    @property
    def own(self) -> list[float]:
        """The rates with which the optimizer was created, by parameter group."""
        return list(self._own)

    def check(self) -> None:
        """Raise ValueError if a rate is no longer what `apply` set it to."""
        self._refuse_others(self._set, "step")

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Raise ValueError if the code inside the `with` block changes the optimizer's rates directly."""
        before = [group["lr"] for group in self._optimizer.param_groups]
        yield
        self._refuse_others(before, "callback")

    def _refuse_others(self, rates: list[float], who: str) -> None:
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            if group["lr"] != rate:
                raise ValueError(f"the {who} set the learning rate to {float(group['lr']):.6g}{OVERWRITTEN}")

    def steer(self, optimizer: torch.optim.Optimizer) -> None:
        """Set the rates of another optimizer from now on; its parameter groups must be the same."""
        self._optimizer = optimizer

    def at(self, fraction: float) -> float:
        """Return the rate of the first parameter group after `fraction` of the samples."""
        return self._all(fraction)[0]

    def apply(self, fraction: float) -> float:
        """Set the rates of all parameter groups; return the rate of the first."""
        rates = self._set = self._all(fraction)
        set_rates(self._optimizer, rates)
        return rates[0]

    def _all(self, fraction: float) -> list[float]:
        if self._fixed is None:
            factor = self._scheduled(fraction) * self._scale * self._factor
            return [rate * factor for rate in self._own]
        return in_ratio(self._fixed * self._factor, self._own)

    def _scheduled(self, fraction: float) -> float:
        given = self._schedule(fraction)
        return sound(f"what the schedule gives for the fraction {fraction:.6g} of the samples", given, ROUNDING)

    def capture(self) -> tuple[float | None, float, float | None, bool]:
        """Return what callbacks changed: (fixed rate, factor, scale, whether the schedule was replaced). The schedule is
        code and cannot be saved. The scale for the number of ranks is not included, as a resumed run may have another
        number."""
        return self._fixed, self._factor, self._scale if self._rescaled else None, self._follows

    def restore(self, captured: tuple[float | None, float, float | None, bool]) -> bool:
        """Restore what `capture` returned; return whether a schedule is missing. Raises ValueError or TypeError for invalid
        values."""
        fixed, factor, scale, follows = captured
        self._fixed = None if fixed is None else sound("a learning rate", fixed)
        self._factor = sound("a factor on the learning rate", factor)
        if scale is not None:
            self.rescale(scale)
        return follows

    def fix(self, rate: float) -> None:
        """Train with `rate` in the first group, whatever the schedule and scale; the other groups keep their ratio to
        it."""
        self._fixed, self._factor = sound("a learning rate", rate), 1.0

    def multiply(self, factor: float) -> None:
        """Multiply all rates from now on, on top of the schedule or of a fixed rate."""
        self._factor *= sound("a factor on the learning rate", factor)

    def rescale(self, scale: float) -> None:
        """Replace the scale for the number of ranks."""
        self._scale, self._rescaled = sound("the scale of the learning rate", scale), True

    def follow(self, schedule: Schedule) -> None:
        """Follow another schedule; this ends the effect of `fix` and `multiply`. Raise ValueError for anything that is
        no function."""
        if not callable(schedule):
            raise ValueError(f"a schedule is a function of the fraction of samples seen, not {schedule!r}")
        self._schedule, self._fixed, self._factor, self._follows = schedule, None, 1.0, True


def own_rates(optimizer: torch.optim.Optimizer) -> list[float]:
    """Return the learning rate of each parameter group. Raises ValueError for an invalid or missing one."""
    if any("lr" not in group for group in optimizer.param_groups):
        raise ValueError(
            f"a parameter group of {type(optimizer).__name__} has no lr, which is set before every step: name the rate lr "
            "in the optimizer's defaults, and have its step read group['lr']"
        )
    return [sound("the learning rate of the optimizer", group["lr"]) for group in optimizer.param_groups]


def set_rates(optimizer: torch.optim.Optimizer, rates: Iterable[float]) -> None:
    """Set the learning rate of each parameter group."""
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def in_ratio(rate: float, own: Sequence[float]) -> list[float]:
    """Return the rates of all parameter groups if the first trains with `rate`: the others keep the ratio of their `own`
    rates to the first's; if that is 0, all get `rate`."""
    return [rate * (each / own[0] if own[0] else 1.0) for each in own]


def a_schedule(given: Any) -> Schedule:
    """Return `given` if calling it shows that it is a schedule. Raises ValueError otherwise, e.g. for a PyTorch
    scheduler."""
    try:
        sound("its factor", given(0.0), ROUNDING)
    except Exception as error:  # whatever error it raises for a fraction
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(
            "schedule must be a function of the fraction of all training samples seen, from 0 to 1, that gives a factor on "
            f"the learning rate, such as lambda seen: 0.5 ** (seen // 0.25); {given!r:.80} is none ({why:.160})"
        ) from error
    schedule: Schedule = given
    return schedule


def sound(what: str, value: Any, below: float = 0.0) -> float:
    """Return `value`, a rate or a factor on it; 0 if it is below 0 by at most `below`. Raises ValueError for other
    values."""
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):  # torch raises RuntimeError for a tensor of several elements
        number = math.nan
    if not (math.isfinite(number) and number >= -below):
        raise ValueError(f"{what} must be a finite number of 0 or more, not {value!r:.60}")
    return max(number, 0.0)
