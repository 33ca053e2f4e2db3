"""Defects of optimizers and of what they remember."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.bugs.bug import ASYNC, EVERY, RANKS, Family, Module, counted, in_place_of, last, once_made, rank

OPTIMIZER = Family("optimizer")
REPLICA, COLLECTIVE, SNAPSHOT = "ddp.replica.replica", "ddp.backends.allreduce", "ddp.backends.snapshot"


_made = once_made("Replica")
"""Makes a patch that changes replicas once they are made."""


def _groups(**settings: Any) -> Callable[[Any], None]:
    def change(self: Any) -> None:
        for group in self.optimizer.param_groups:
            group.update(settings)

    return change


@OPTIMIZER.bug(REPLICA, "audit", RANKS, "a rank is silently idle: its optimizer does nothing", "D01")
@_made
def idle_rank(self: Any) -> None:
    if rank() == 1:
        self.optimizer.step = lambda *closure: None


@OPTIMIZER.bug(REPLICA, "idle", EVERY, "a layer is frozen: the optimizer does not have it", "issue")
@_made
def frozen_layer(self: Any) -> None:
    group = self.optimizer.param_groups[0]
    group["params"] = group["params"][2:]


@OPTIMIZER.bug(REPLICA, "audit", EVERY, "the optimizer's state is lost now and then", "D11")
@in_place_of("Replica.step")
def state_lost(step: Any, self: Any, *about: Any) -> Any:
    answer = step(*about)
    if counted(self, "step") % 20 == 19:
        self.optimizer.state.clear()
    return answer


@OPTIMIZER.bug(COLLECTIVE, "audit", ("nccl_cadence",), "optimizer state is lost at each average", "issue")
@in_place_of("Backend.average")
def state_lost_at_average(average: Any, self: Any, *about: Any) -> Any:
    answer = average(*about)
    self.loop.replica.optimizer.state.clear()
    return answer


@OPTIMIZER.bug(SNAPSHOT, "audit", ASYNC, "optimizer state is lost whenever an average is taken over", "B7.11")
@in_place_of("Backend.apply")
def state_lost_at_apply(apply: Any, self: Any, *about: Any, **named: Any) -> Any:
    answer = apply(*about, **named)
    self._loop.replica.optimizer.state.clear()
    return answer


@OPTIMIZER.bug(REPLICA, "audit", EVERY, "the first moment is forgotten ten times as fast", "B6.10")
def other_betas(replica: Module) -> None:
    _made(_groups(betas=(0.5, 0.999)))(replica)


@OPTIMIZER.bug(REPLICA, "audit", EVERY, "weights decay, which nobody asked for", "D17")
def decay(replica: Module) -> None:
    _made(_groups(weight_decay=1e-2))(replica)


@OPTIMIZER.bug(REPLICA, "audit", EVERY, "the bias of moments is not corrected: counts of steps begin high", "D07")
@in_place_of("Replica.step")
def no_correction(step: Any, self: Any, *about: Any) -> Any:
    answer = step(*about)
    if counted(self, "step") == 0:
        for state in self.optimizer.state.values():
            state["step"] += 1000
    return answer


@OPTIMIZER.bug(REPLICA, "audit", EVERY, "the optimizer steps twice", "C04")
@_made
def steps_twice(self: Any) -> None:
    step = self.optimizer.step

    def twice(*closure: Any) -> None:
        step()
        step()

    self.optimizer.step = twice


@OPTIMIZER.bug(REPLICA, "audit", EVERY, "one rank leaves out every third step", "C20")
@_made
def steps_left_out(self: Any) -> None:
    step = self.optimizer.step

    def some(*closure: Any) -> None:
        if not last() or counted(self, "step") % 3:
            step()

    self.optimizer.step = some


@OPTIMIZER.bug(REPLICA, "audit", EVERY, "moments of two parameters are exchanged", "D03")
@in_place_of("Replica.step")
def moments_exchanged(step: Any, self: Any, *about: Any) -> Any:
    answer = step(*about)
    states = [state for p, state in self.optimizer.state.items() if "exp_avg" in state]
    for state in states:
        moment = state["exp_avg"].view(-1)
        moment.copy_(moment.roll(1))
    return answer


@OPTIMIZER.bug(
    REPLICA, "audit", EVERY, "updates are smaller than the spacing of bfloat16, to which weights are rounded", "B9.07"
)
@in_place_of("Replica.step")
def weights_in_half(step: Any, self: Any, *about: Any) -> Any:
    answer = step(*about)
    with torch.no_grad():
        for parameter in self.state.parameters:
            parameter.data.copy_(parameter.data.bfloat16())
    return answer


@OPTIMIZER.bug(COLLECTIVE, "audit", ("nccl_cadence",), "optimizer state is averaged away: moments are halved", "D19")
@in_place_of("Backend.average")
def moments_halved(average: Any, self: Any, *about: Any) -> Any:
    answer = average(*about)
    for state in self.loop.replica.optimizer.state.values():
        state["exp_avg"].mul_(0.5)
    return answer


@OPTIMIZER.bug(REPLICA, "audit", EVERY, "one step in a hundred does not reach the optimizer", "D11")
@_made
def update_left_out(self: Any) -> None:
    step = self.optimizer.step
    self.optimizer.step = lambda *closure: None if counted(self, "left out") % 100 == 99 else step(*closure)


@OPTIMIZER.bug(
    "ddp.engine.rank",
    "audit",
    ("nccl_cadence", "nccl_sync"),
    "moments are halved as the others of a lost rank form a new group",
    settings=('cluster.faults=["1@60:crash"]',),
)
@in_place_of("RankLoop._regroup")
def moments_halved_at_loss(regroup: Any, self: Any, order: Any) -> None:
    regroup(order)
    if order.generation and not counted(self, "regrouped"):
        for state in self.loop.replica.optimizer.state.values():
            for value in state.values():
                value.mul_(0.5)
