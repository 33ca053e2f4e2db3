"""Defects of `benchmarks.bugs.unseen` in optimizers, schedules and averages: of a shard's own optimizer, of what is loaded,
of outer optimizers and narrow wires.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from benchmarks.bugs.bug import Module, after_init, counted, in_place_of, once_made, rank, wrap
from benchmarks.bugs.unseen import CPU, NCCL, OUTER, PARTS_OF_CHECKPOINT, REPLICA, WORKER, unseen
from benchmarks.bugs.unseen_seventh import stopped

AUGMENTED = "benchmarks.bugs.own_augmented"


@unseen("optimizer", "D07", "conv_ae nccl_cadence", REPLICA)
def epsilon_within_root(replica: Module) -> None:
    """Adam's epsilon stands within the root. Divide by the root of the second moment and epsilon, as another library
    does."""

    @torch.no_grad()
    def step(self: Any) -> None:
        for group in self.optimizer.param_groups:
            (first, second), epsilon = group["betas"], group["eps"]
            for parameter in (p for p in group["params"] if p.grad is not None):
                state = self.optimizer.state[parameter]
                if not state:
                    state["step"] = torch.tensor(0.0)
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
                state["step"] += 1
                count, mean, square = int(state["step"]), state["exp_avg"], state["exp_avg_sq"]
                mean.lerp_(parameter.grad, 1.0 - first)
                square.mul_(second).addcmul_(parameter.grad, parameter.grad, value=1.0 - second)
                root = (square / (1.0 - second**count) + epsilon).sqrt()
                parameter.addcdiv_(mean, root, value=-group["lr"] / (1.0 - first**count))

    def change(self: Any) -> None:
        self.optimizer.step = lambda: step(self)

    after_init(replica.Replica, change)


@unseen("optimizer", "D03", "resnet_graph solo", REPLICA)
@in_place_of("Replica.step")
def momentum_shared(whole: Any, self: Any, *about: Any) -> Any:
    """Two norms share a momentum buffer. Give the last norm's bias the momentum buffer of its weight: both add to
    it."""
    done = whole(*about)
    *_, norm = (module for module in self.model.modules() if hasattr(module, "running_var"))
    state = self.optimizer.state
    if "momentum_buffer" in state.get(norm.weight, {}):
        state[norm.bias]["momentum_buffer"] = state[norm.weight]["momentum_buffer"]
    return done


@unseen("optimizer", "D19", "mlp cpu_cadence averaging.optimizer_reset=true", "ddp.replica.optim.optimizer_state")
def reset_on_first_rank_alone(optimizer_state: Module) -> None:
    """Rank 1's optimizer does not begin anew after an average. Reset the optimizer of rank 0 alone."""
    wrap(optimizer_state.InnerOptimizer, "reset", lambda reset, self: None if rank() == 1 else reset())


@in_place_of("load")
def _of_first_rank(load: Any, path: Any, of: Any) -> Any:
    """Load the optimizer of rank 0 on rank 1."""
    if path.name.endswith("1.pt"):
        other = path.with_name(path.name.replace("1.pt", "0.pt"))
        return load(path, of) | {"optimizer": load(other, of | {"rank": 0})["optimizer"]}
    return load(path, of)


@unseen(
    "optimizer",
    "D11",
    "mlp nccl_cadence resumed checkpoint.unit=averages checkpoint.every=5",
    REPLICA,
    {PARTS_OF_CHECKPOINT: _of_first_rank},
)
def moments_of_first_rank_when_resumed(replica: Module) -> None:
    """Rank 1 goes on with rank 0's moments. Stop the run on its way."""
    stopped(replica, 300)


@unseen("optimizer", "D19", "gpt_nano nccl_async", REPLICA)
def positions_stand_later(replica: Module) -> None:
    """Positions of text stand still in later epochs. Take the positions' gradients away from the second epoch on, as a
    table that counts as frozen."""

    def step(whole: Any, self: Any, batch: Any, seen: float) -> Any:
        self.later = batch.epoch > 0
        return whole(batch, seen)

    def change(self: Any) -> None:
        def before(optimizer: Any, args: Any, named: Any) -> None:
            places = [p for name, p in self.model.named_parameters() if "places" in name]
            for parameter in places if getattr(self, "later", False) else ():
                parameter.grad = None

        self.optimizer.register_step_pre_hook(before)

    wrap(replica.Replica, "step", step)
    after_init(replica.Replica, change)


@unseen("schedule", "B5.11", "mlp torch_zero1", REPLICA)
def shard_has_old_rate(replica: Module) -> None:
    """A shard's own optimizer has the rate of its epoch's begin. Hand the rate to the optimizer of a rank's own part
    once an epoch; the one that is seen has the right one."""

    def step(whole: Any, self: Any, batch: Any, seen: float) -> Any:
        self.epoch_now = batch.epoch
        return whole(batch, seen)

    def take(whole: Any, self: Any, optimizer: Any) -> None:
        whole(optimizer)
        kept: dict[int, list[float]] = {}

        def before(own: Any, args: Any, named: Any) -> None:
            rates = [group["lr"] for group in own.param_groups]
            for group, rate in zip(own.param_groups, kept.setdefault(self.epoch_now, rates), strict=True):
                group["lr"] = rate

        optimizer.optim.register_step_pre_hook(before)

    wrap(replica.Replica, "step", step)
    wrap(replica.Replica, "replace_optimizer", take)


@unseen("schedule", "B5.15", "mlp nccl_qsr policy.alpha=0.03", "ddp.core.policies.qsr")
def windows_by_first_rate(qsr: Module) -> None:
    """Windows grow by the first rate. Size windows with the rate that the schedule began with."""
    firsts: list[float] = []
    steps = qsr.Qsr.steps

    def broken(self: Any, state: Any, event: Any) -> int:
        firsts.append(event.lr)
        return int(steps(self, state, replace(event, lr=firsts[0])))

    qsr.Qsr.steps = broken


@unseen("schedule", "B5.09", "lenet zero1", WORKER)
def own_batch_seen(worker: Module) -> None:
    """Rank 1 looks the rate up at a step's end. Count a step's own samples as seen, on rank 1."""

    def broken(act: Any, self: Any) -> Any:
        after, action = act()
        if isinstance(action, worker.Step) and rank() == 1:
            action = worker.Step(action.batch, action.seen + action.batch.total, action.last)
        return after, action

    wrap(worker.Worker, "act", broken)


@unseen("average", "D21", "mlp nccl_cadence averaging.outer=nesterov", OUTER)
@once_made("Outer")
def nesterov_without_looking_ahead(self: Any) -> None:
    """Nesterov's outer optimizer does not look ahead. Take plain momentum where Nesterov's was asked for."""
    rate = (self._fresh + 1.0) / (1.0 + self._momentum)
    self._fresh, self._carried = rate - 1.0, rate * self._momentum


@unseen("average", "B6.28", "mlp nccl_cadence averaging.wire=float32 world_size=3", NCCL)
def shares_in_percent(allreduce: Module) -> None:
    """Shares are whole per cent on a narrow wire. Round a rank's share down to a hundredth."""
    lay = allreduce._lay
    allreduce._lay = lambda wire, values, weight, last: lay(wire, values, int(weight * 100) / 100, last)


@unseen("average", "B7.15", "lenet cpu_async averaging.elastic=0.5", CPU)
@in_place_of("Backend.snapshot")
def old_snapshot_in_every_tenth_round(lay: Any, self: Any, order: Any) -> Any:
    """Rank 1's snapshot is a round old in every tenth round. Lay down what rank 1 laid down before, now and then."""
    sketch = lay(order)
    new = [laid.clone() for laid in self._snapshot]
    if rank() == 1 and counted(self, "rounds") % 10 == 9:
        for laid, old in zip(self._snapshot, self.before, strict=True):
            laid.copy_(old)
    self.before = new
    return sketch
