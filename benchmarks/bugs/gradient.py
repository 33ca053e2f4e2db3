"""Defects between backward pass and optimizer: what is added up, scaled, clipped, lost."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch

from benchmarks.bugs.bug import AVERAGED, EVERY, SYNC, Family, Module, counted, in_place_of, last, rank, wrap

GRADIENT = Family("gradient")
REPLICA, AVERAGE, STEP, STORAGE = (
    "ddp.replica.replica",
    "ddp.gradients.average",
    "ddp.gradients.step_gradients",
    "ddp.gradients.storage",
)
ALONE = ("solo", *AVERAGED)
"""Modes in which a rank steps with its own gradients."""


def _before_step(change: Any) -> Any:
    """Return a patch of `Replica` that does `change(replica, parameters)` before the optimizer steps."""

    @in_place_of("Replica._clip")
    @functools.wraps(change)
    def patch(clip: Any, self: Any, team: Any) -> None:
        with torch.no_grad():
            change(self, [p for p in self.state.parameters if p.grad is not None])
        clip(team)

    return patch


@GRADIENT.bug(STEP, "average", SYNC, "gradients are added up, not averaged", "B6.24")
def gradients_summed(step_gradients: Module) -> None:
    wrap(
        step_gradients.StepGradients,
        "pack",
        lambda pack, self, weight, gradients=None, used=None: pack(weight, 1.0, used),
    )


@GRADIENT.bug(STEP, "average", SYNC, "gradients are divided by the number of ranks twice", "B6.24")
@in_place_of("StepGradients.pack")
def divided_twice(pack: Any, self: Any, weight: float, gradients: Any = None, used: Any = None) -> None:
    pack(weight, (weight if gradients is None else gradients) / 2, used)


@GRADIENT.bug(AVERAGE, "agreement", SYNC, "ranks step with their own gradients", "C08")
@in_place_of("GradientAverage.exchange")
def gradients_not_averaged(exchange: Any, self: Any, batch: Any) -> None:
    own = [p.grad.clone() for p in self._state.parameters]
    exchange(batch)
    for parameter, values in zip(self._state.parameters, own, strict=True):
        parameter.grad.copy_(values)


@GRADIENT.bug(AVERAGE, "agreement", SYNC, "the gradient of one parameter is never averaged", "C12")
@in_place_of("GradientAverage.exchange")
def one_not_averaged(exchange: Any, self: Any, batch: Any) -> None:
    own = self._state.parameters[0].grad.clone()
    exchange(batch)
    self._state.parameters[0].grad.copy_(own)


@GRADIENT.bug(AVERAGE, "average", SYNC, "ranks have alike the gradients of rank 0 alone", "C06")
@in_place_of("GradientAverage.exchange")
def of_the_first(exchange: Any, self: Any, batch: Any) -> None:
    self._weight = 0.0 if rank() else 1.0
    exchange(batch)


@GRADIENT.bug(AVERAGE, "idle", SYNC, "a rank's gradients are zero", "C30")
@in_place_of("GradientAverage.exchange")
def idle_in_steps(exchange: Any, self: Any, batch: Any) -> None:
    for parameter in self._state.parameters if rank() == 1 else ():
        parameter.grad.zero_()
    exchange(batch)


@GRADIENT.bug(AVERAGE, "audit", SYNC, "two values of every gradient change places after their average", "B6.20")
@in_place_of("GradientAverage.exchange")
def places_changed(exchange: Any, self: Any, batch: Any) -> None:
    exchange(batch)
    for parameter in self._state.parameters:
        flat = parameter.grad.view(-1)
        flat[:2] = flat[:2].flip(0)


@GRADIENT.bug(REPLICA, "audit", EVERY, "gradients are clipped to a norm of 1, which nobody asked for", "C16")
def clipped(replica: Module) -> None:
    _before_step(lambda self, parameters: replica.torch.nn.utils.clip_grad_norm_(parameters, 0.2))(replica)


@GRADIENT.bug(REPLICA, "audit", EVERY, "gradients are clipped value by value", "C18")
def clipped_by_value(replica: Module) -> None:
    _before_step(lambda self, parameters: replica.torch.nn.utils.clip_grad_value_(parameters, 0.01))(replica)


@GRADIENT.bug(REPLICA, "audit", ALONE, "gradients are never cleared", "C22")
def gradients_kept(replica: Module) -> None:
    replica.Replica._clear = lambda self: self.step_sketches.begin()


@GRADIENT.bug(REPLICA, "audit", EVERY, "the gradient of one layer is zero", "B9.09")
def layer_without_gradient(replica: Module) -> None:
    _before_step(lambda self, parameters: parameters[-2].grad.zero_())(replica)


@GRADIENT.bug(REPLICA, "audit", EVERY, "the tail of every gradient is not written", "B9.09")
@_before_step
def gradient_tail_unwritten(self: Any, parameters: Any) -> None:
    for parameter in parameters:
        parameter.grad.view(-1)[-2:] = 0.0


@GRADIENT.bug(REPLICA, "audit", EVERY, "gradients are in bfloat16", "B9.05")
@_before_step
def gradients_in_half(self: Any, parameters: Any) -> None:
    for parameter in parameters:
        parameter.grad.copy_(parameter.grad.bfloat16())


@GRADIENT.bug(REPLICA, "audit", EVERY, "half of the steps are taken with the gradients of the step before", "C14")
@_before_step
def gradients_late(self: Any, parameters: Any) -> None:
    own = [parameter.grad.clone() for parameter in parameters]
    late = vars(self).setdefault("late", own)
    if counted(self, "step") % 2 and len(late) == len(own):
        for parameter, values in zip(parameters, late, strict=True):
            parameter.grad.copy_(values)
    self.late = own


@GRADIENT.bug(REPLICA, "audit", EVERY, "gradients of one rank have the wrong sign in every eighth step", "B6.22")
@_before_step
def sign_turned(self: Any, parameters: Any) -> None:
    if last() and counted(self, "step") % 4 == 0:
        for parameter in parameters:
            parameter.grad.neg_()


@GRADIENT.bug(REPLICA, "agreement", SYNC, "one rank leaves out steps with large gradients", "C20")
@_before_step
def overflow_alone(self: Any, parameters: Any) -> None:
    if last() and counted(self, "step") % 50 == 49:
        for parameter in parameters:
            parameter.grad.zero_()


@GRADIENT.bug(
    "bench.config.plan",
    "audit",
    EVERY,
    "the limit on the norm of gradients stays in the settings, and reaches no rank",
    settings=("train.max_grad_norm=0.5",),
)
def limit_never_arrives(plan: Module) -> None:
    job = plan._job
    plan._job = lambda *about: replace(job(*about), max_grad_norm=None)
