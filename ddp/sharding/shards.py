"""Own a rank's shards: its elements of each parameter, as separate parameters that replace the whole ones in the optimizer.
Knows no transport, and not when anything is exchanged.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ddp.replica.optim import optimizers
from ddp.sharding.partition import Layout

WHOLE = ("LBFGS", "Adafactor", "Muon", "SparseAdam")
"""Optimizers of `torch.optim` that are not element-wise."""
_sharded: weakref.WeakSet[nn.Module] = weakref.WeakSet()


@dataclass(eq=False)
class Shard:
    """A rank's part of one parameter: its elements [start, stop), as a parameter [stop - start] of the optimizer."""

    parameter: nn.Parameter
    start: int
    stop: int
    at: int
    """Offset in everything that the rank owns of the group."""
    values: nn.Parameter


class ShardGroup:
    """Parameters of one data type, all trained or none, that are divided over the ranks together. `place` creates the
    shards of this rank."""

    def __init__(self, parameters: list[nn.Parameter], world_size: int, rank: int) -> None:
        self.parameters, self.rank = parameters, rank
        self.dtype, self.device = parameters[0].dtype, parameters[0].device
        self.trained = parameters[0].requires_grad
        """Whether these parameters were trained at first; a parameter that is frozen later stays sharded."""
        self.shapes = [parameter.shape for parameter in parameters]
        self.layout = Layout(tuple(parameter.numel() for parameter in parameters), world_size)
        self.shards: list[Shard] = []
        self.shared_out = False
        """Whether ranks have shards of it (this rank may have none); otherwise all ranks have it whole."""

    def place(self, lie: Callable[[nn.Parameter, int, int, int], Tensor]) -> None:
        """Create the shards. `lie(parameter, start, stop, at)` returns their memory [stop - start], with its values."""
        self.shared_out = True
        at = 0
        for index, start, stop in self.layout.fragments(self.rank):
            parameter = self.parameters[index]
            values = nn.Parameter(lie(parameter, start, stop, at), requires_grad=parameter.requires_grad)
            self.shards.append(Shard(parameter, start, stop, at, values))
            at += stop - start


def claim(model: nn.Module) -> None:
    """Mark `model` as sharded. Raise ValueError if it, or a part of it, is sharded already."""
    if any(module in _sharded for module in model.modules()):
        raise ValueError(
            f"{type(model).__name__} is sharded already, in whole or in part: wrap a model once, "
            "or take the wrapping back first (`unwrap`)"
        )
    for module in model.modules():
        _sharded.add(module)


def disclaim(model: nn.Module) -> None:
    """Remove the mark, so that `model` can be sharded again."""
    for module in model.modules():
        _sharded.discard(module)


def grouped(model: nn.Module, world_size: int, rank: int) -> list[ShardGroup]:
    """Return the parameters of `model` in groups by data type and by whether they are trained."""
    members: dict[tuple[bool, str], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        members.setdefault((not parameter.requires_grad, str(parameter.dtype)), []).append(parameter)
    return [ShardGroup(members[key], world_size, rank) for key in sorted(members)]


def shard_optimizer(optimizer: torch.optim.Optimizer, groups: Iterable[ShardGroup]) -> list[list[nn.Parameter]]:
    """Replace whole parameters in the optimizer by this rank's shards, with their part of the state. Return the parameters
    that each group had. Raises ValueError for an optimizer that needs whole tensors, or that has other parameters."""
    _check(optimizer)
    shards = {shard.parameter: shard for group in groups for shard in group.shards}
    known = {parameter for group in groups for parameter in group.parameters}
    before: list[list[nn.Parameter]] = []
    for part in optimizers.members(optimizer):
        for group in part.param_groups:
            before.append(list(group["params"]))
            if not known.issuperset(group["params"]):
                raise ValueError(
                    "the optimizer has parameters that the model has not: make it from model.parameters(), before sharding"
                )
            for parameter in group["params"]:
                state = part.state.pop(parameter, None)
                if state and parameter in shards:
                    shard = shards[parameter]
                    part.state[shard.values] = cut(state, parameter.shape, shard.start, shard.stop)
            group["params"] = [shards[parameter].values for parameter in group["params"] if parameter in shards]
    return before


def restore_optimizer(optimizer: torch.optim.Optimizer, before: Iterable[list[nn.Parameter]]) -> None:
    """Replace the shards by whole parameters, and drop their state."""
    for group, members in zip(optimizer.param_groups, before, strict=False):
        for values in group["params"]:
            optimizer.state.pop(values, None)
        group["params"] = list(members)


def cut(state: dict[str, Any], shape: torch.Size, start: int, stop: int) -> dict[str, Any]:
    """Return elements [start, stop) of state tensors that have one value for each element of a parameter; other state
    unchanged."""

    def part(key: str, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        each = value.shape == shape and key != "step"
        return (value.reshape(-1)[start:stop] if each else value).detach().clone()

    return {key: part(key, value) for key, value in state.items()}


def _check(optimizer: torch.optim.Optimizer) -> None:
    kinds = [kind.__name__ for part in optimizers.members(optimizer) for kind in type(part).__mro__]
    name = next((kind for kind in kinds if kind in WHOLE), None)
    if name is not None:
        raise ValueError(
            f"{name} needs whole tensors in its step, and a rank has shards: use an element-wise optimizer "
            "(SGD, AdamW and their kin), or mode=nccl_sync"
        )
