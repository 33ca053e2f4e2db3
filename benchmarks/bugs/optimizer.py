"""Defects of optimizers and of what they remember."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.bugs.bug import ASYNC, EVERY, RANKS, Family, Module, after_init, counted, last, rank, wrap

OPTIMIZER = Family("optimizer")
REPLICA, COLLECTIVE, SNAPSHOT = "ddp.replica.replica", "ddp.backends.allreduce", "ddp.backends.snapshot"


def _made(change: Callable[[Any], None]) -> Callable[[Module], None]:
    """Return a patch that changes replicas once they are made."""
    return lambda replica: after_init(replica.Replica, change)


def _groups(**settings: Any) -> Callable[[Any], None]:
    def change(self: Any) -> None:
        for group in self.optimizer.param_groups:
            group.update(settings)

    return change


@OPTIMIZER.bug(REPLICA, "audit", RANKS, "a rank is silently idle: its optimizer does nothing", "D01")
def idle_rank(replica: Module) -> None:
    def change(self: Any) -> None:
        if rank() == 1:
            self.optimizer.step = lambda *closure: None

    _made(change)(replica)


@OPTIMIZER.bug(REPLICA, "idle", EVERY, "a layer is frozen: the optimizer does not have it", "issue")
def frozen_layer(replica: Module) -> None:
    def change(self: Any) -> None:
        group = self.optimizer.param_groups[0]
        group["params"] = group["params"][2:]

    _made(change)(replica)


@OPTIMIZER.bug(REPLICA, "audit", EVERY, "the optimizer's state is lost now and then", "D11")
def state_lost(replica: Module) -> None:
    def broken(step: Any, self: Any, *about: Any) -> Any:
        answer = step(*about)
        if counted(self, "step") % 20 == 19:
            self.optimizer.state.clear()
        return answer

    wrap(replica.Replica, "step", broken)


@OPTIMIZER.bug(COLLECTIVE, "audit", ("nccl_cadence",), "optimizer state is lost at each average", "issue")
def state_lost_at_average(collective: Module) -> None:
    def broken(average: Any, self: Any, *about: Any) -> Any:
        answer = average(*about)
        self.loop.replica.optimizer.state.clear()
        return answer

    wrap(collective.Backend, "average", broken)


@OPTIMIZER.bug(SNAPSHOT, "audit", ASYNC, "optimizer state is lost whenever an average is taken over", "B7.11")
def state_lost_at_apply(snapshot: Module) -> None:
    def broken(apply: Any, self: Any, *about: Any, **named: Any) -> Any:
        answer = apply(*about, **named)
        self._loop.replica.optimizer.state.clear()
        return answer

    wrap(snapshot.Backend, "apply", broken)


@OPTIMIZER.bug(REPLICA, "audit", EVERY, "the first moment is forgotten ten times as fast", "B6.10")
def other_betas(replica: Module) -> None:
    _made(_groups(betas=(0.5, 0.999)))(replica)


@OPTIMIZER.bug(REPLICA, "audit", EVERY, "weights decay, which nobody asked for", "D17")
def decay(replica: Module) -> None:
    _made(_groups(weight_decay=1e-2))(replica)


@OPTIMIZER.bug(REPLICA, "audit", EVERY, "the bias of moments is not corrected: counts of steps begin high", "D07")
def no_correction(replica: Module) -> None:
    def broken(step: Any, self: Any, *about: Any) -> Any:
        answer = step(*about)
        if counted(self, "step") == 0:
            for state in self.optimizer.state.values():
                state["step"] += 1000
        return answer

    wrap(replica.Replica, "step", broken)


@OPTIMIZER.bug(REPLICA, "audit", EVERY, "the optimizer steps twice", "C04")
def steps_twice(replica: Module) -> None:
    def change(self: Any) -> None:
        step = self.optimizer.step

        def twice(*closure: Any) -> None:
            step()
            step()

        self.optimizer.step = twice

    _made(change)(replica)


@OPTIMIZER.bug(REPLICA, "audit", EVERY, "one rank leaves out every third step", "C20")
def steps_left_out(replica: Module) -> None:
    def change(self: Any) -> None:
        step = self.optimizer.step

        def some(*closure: Any) -> None:
            if not last() or counted(self, "step") % 3:
                step()

        self.optimizer.step = some

    _made(change)(replica)


@OPTIMIZER.bug(REPLICA, "audit", EVERY, "moments of two parameters are exchanged", "D03")
def moments_exchanged(replica: Module) -> None:
    def broken(step: Any, self: Any, *about: Any) -> Any:
        answer = step(*about)
        states = [state for p, state in self.optimizer.state.items() if "exp_avg" in state]
        for state in states:
            moment = state["exp_avg"].view(-1)
            moment.copy_(moment.roll(1))
        return answer

    wrap(replica.Replica, "step", broken)


@OPTIMIZER.bug(
    REPLICA, "audit", EVERY, "updates are smaller than the spacing of bfloat16, to which weights are rounded", "B9.07"
)
def weights_in_half(replica: Module) -> None:
    def broken(step: Any, self: Any, *about: Any) -> Any:
        answer = step(*about)
        with replica.torch.no_grad():
            for parameter in self.state.parameters:
                parameter.data.copy_(parameter.data.bfloat16())
        return answer

    wrap(replica.Replica, "step", broken)


@OPTIMIZER.bug(COLLECTIVE, "audit", ("nccl_cadence",), "optimizer state is averaged away: moments are halved", "D19")
def moments_halved(collective: Module) -> None:
    def broken(average: Any, self: Any, *about: Any) -> Any:
        answer = average(*about)
        for state in self.loop.replica.optimizer.state.values():
            state["exp_avg"].mul_(0.5)
        return answer

    wrap(collective.Backend, "average", broken)


@OPTIMIZER.bug(REPLICA, "audit", EVERY, "one step in a hundred does not reach the optimizer", "D11")
def update_left_out(replica: Module) -> None:
    def change(self: Any) -> None:
        step = self.optimizer.step
        self.optimizer.step = lambda *closure: None if counted(self, "left out") % 100 == 99 else step(*closure)

    _made(change)(replica)


@OPTIMIZER.bug(
    "ddp.engine.rank",
    "audit",
    ("nccl_cadence", "nccl_sync"),
    "moments are halved as the others of a lost rank form a new group",
    settings=('cluster.faults=["1@60:crash"]',),
)
def moments_halved_at_loss(ranks: Module) -> None:
    def broken(regroup: Any, self: Any, order: Any) -> None:
        regroup(order)
        if order.generation and not counted(self, "regrouped"):
            for state in self.loop.replica.optimizer.state.values():
                for value in state.values():
                    value.mul_(0.5)

    wrap(ranks.RankLoop, "_regroup", broken)
