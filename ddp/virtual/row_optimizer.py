"""SGD and Adam for the replicas of many ranks at once: element-wise, with a learning rate and a step count for each rank.

The formulas are those of `torch.optim`. Knows nothing of gradients, ranks' work, or who steps when.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import optimizer as hooks

from ddp.replica.evidence.parameter_guard import HOOK

PLAIN = {"maximize": False, "amsgrad": False, "capturable": False, "differentiable": False, "dampening": 0}
"""Required values of settings of torch's optimizers."""


def unfit(optimizer: torch.optim.Optimizer) -> str:
    """Return why an optimizer cannot step for many ranks at once; empty: it can."""
    kind = type(optimizer)
    if kind not in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        return f"{kind.__name__} is neither SGD, Adam nor AdamW"
    every = hooks._global_optimizer_pre_hooks.keys() - {HOOK.id} | hooks._global_optimizer_post_hooks.keys()
    if every or optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return f"{kind.__name__} has a hook on its step"
    if "step" in vars(optimizer):
        return f"{kind.__name__} has another step"
    for group in optimizer.param_groups:
        for name, value in PLAIN.items():
            if group.get(name, value) != value:
                return f"{kind.__name__} with {name}={group[name]}"
    return ""


@dataclass(frozen=True)
class _ParameterSlot:
    """A parameter of all ranks: its offset in a replica, and its settings."""

    name: str
    start: int
    shape: torch.Size
    group: int
    settings: Mapping[str, Any]

    def of(self, flat: Tensor) -> Tensor:
        """Return its view [ranks, *shape] of replicas [ranks, parameters]."""
        size = self.shape.numel()
        return flat[:, self.start : self.start + size].view(flat.shape[0], *self.shape)


class RowOptimizer:
    """Steps of `optimizer` for `ranks` replicas of its parameters. `places`: name -> offset in a replica."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named: Sequence[tuple[str, Tensor]],
        places: Mapping[str, int],
        ranks: int,
    ) -> None:
        self._adam = not isinstance(optimizer, torch.optim.SGD)
        owners = {
            id(p): (number, group) for number, group in enumerate(optimizer.param_groups) for p in group["params"]
        }
        self.slots = [
            _ParameterSlot(name, places[name], p.shape, owners[id(p)][0], owners[id(p)][1])
            for name, p in named
            if id(p) in owners
        ]
        momentum = any(group.get("momentum") for group in optimizer.param_groups)
        elements = sum(p.numel() for _, p in named)
        like = named[0][1]
        self.states = [
            torch.zeros(ranks, elements, dtype=like.dtype) for _ in range(2 if self._adam else int(bool(momentum)))
        ]
        self.steps = torch.zeros(ranks, dtype=torch.float64)
        """Number of steps of each rank since its last reset."""

    def state_of(self, rank: int) -> Iterator[tuple[str, str, Tensor]]:
        """Yield the state that an optimizer of `torch.optim` would have for a rank: (parameter, key, value)."""
        steps = self.steps[rank].to(torch.get_default_dtype())
        for slot in self.slots if steps else ():
            if self._adam:
                yield slot.name, "step", steps
            keys = ("exp_avg", "exp_avg_sq") if self._adam else ("momentum_buffer",) * bool(slot.settings["momentum"])
            for key, state in zip(keys, self.states, strict=False):
                yield slot.name, key, slot.of(state[rank : rank + 1])[0]

    def reset(self, rank: int) -> None:
        """Reset the state of a rank."""
        self.steps[rank] = 0
        for state in self.states:
            state[rank] = 0

    def step(
        self,
        rows: Tensor,
        states: Sequence[Tensor],
        steps: Tensor,
        grads: Mapping[str, Tensor],
        rates: Sequence[Tensor],
    ) -> None:
        """Step the replicas `rows` [ranks, parameters] in place. `states`: state of the same ranks, changed in place;
        `steps`: their step counts, including this one; `rates`: by parameter group, the learning rate of each rank."""
        for slot in self.slots:
            broad = (-1, *(1 for _ in slot.shape))
            rate, count = rates[slot.group].view(broad), steps.view(broad)
            own = [slot.of(state) for state in states]
            act = self._step_adam if self._adam else self._step_sgd
            act(slot, slot.of(rows), grads[slot.name], own, rate.to(rows.dtype), count)

    def _step_sgd(
        self, slot: _ParameterSlot, own: Tensor, grad: Tensor, states: list[Tensor], rate: Tensor, count: Tensor
    ) -> None:
        decay, momentum = slot.settings["weight_decay"], slot.settings["momentum"]
        grad = grad.add(own, alpha=decay) if decay else grad
        if momentum:
            states[0].mul_(momentum).add_(grad)
            grad = grad.add(states[0], alpha=momentum) if slot.settings["nesterov"] else states[0]
        own.addcmul_(grad, rate.expand_as(grad), value=-1)

    def _step_adam(
        self, slot: _ParameterSlot, own: Tensor, grad: Tensor, states: list[Tensor], rate: Tensor, count: Tensor
    ) -> None:
        (first, second), decay = slot.settings["betas"], slot.settings["weight_decay"]
        if decay and slot.settings["decoupled_weight_decay"]:
            own.mul_(1 - rate * decay)
        elif decay:
            grad = grad.add(own, alpha=decay)
        states[0].lerp_(grad, 1 - first)
        states[1].mul_(second).addcmul_(grad, grad, value=1 - second)
        length = (rate / (1 - first**count)).to(own.dtype)
        root = torch.sqrt(1 - second**count).to(own.dtype)
        own.addcdiv_(states[0] * length, states[1].sqrt().div_(root).add_(slot.settings["eps"]), value=-1)
