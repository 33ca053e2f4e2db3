"""Finds a training step that changes parameters itself, in its first steps and by name: they are the optimizer's.

What a step changes on one rank no other rank knows of. Looks at the version counters that torch keeps of every tensor,
in every eighth step, as they cost a small model half a percent of its own; and in steps 0, 1, 2, 4, 8, ... at the bits
of all parameters as well: writes through `.data` leave no version behind. Knows nothing of ranks."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from operator import attrgetter
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes of a value -> what its bits are read as."""
EVERY = 8
"""Steps from one look at the versions to the next."""
_version = attrgetter("_version")
_here = threading.local()
"""`watch`: the one whose step this thread is in. Replicas in threads of one process have a step each."""


class StepParameterGuard:
    """The parameters of a replica, between `begin` and `end` of a step that is a user's code."""

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]], optimizer: torch.optim.Optimizer) -> None:
        self._names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self._ids = {id(parameter) for parameter in self._parameters}
        self._optimizer = optimizer
        self._steps = 0
        self._versions: list[int] = []
        """Of each parameter; empty in a step that does not look at them."""
        self._bits: list[int | None] = []
        """Sums over the bits of each parameter; empty in a step that does not look at them."""
        self._self = ref(self)

    def begin(self) -> None:
        """Begin a step, which is the user's code."""
        steps = self._steps
        self._steps = steps + 1
        rarely = steps & (steps - 1) == 0
        self._bits = _sums(self._parameters) if rarely else []
        self._versions = list(map(_version, self._parameters)) if rarely or steps % EVERY == 0 else []
        _here.watch = self._self

    def end(self) -> None:
        """End it, its backward pass too. Raises ValueError that names a parameter that it changed."""
        _here.watch = None
        if self._versions and (versions := list(map(_version, self._parameters))) != self._versions:
            self._refuse(self._versions, versions)
        if self._bits:
            self._refuse(self._bits, _sums(self._parameters))

    def _refuse(self, before: Sequence[int | None], after: Sequence[int | None]) -> None:
        """Raise for what differs; of a shard that was gathered or let go of in between nothing is known."""
        sums = zip(self._names, before, after, strict=True)
        changed = [name for name, old, new in sums if None not in (old, new) and old != new]
        if not changed:
            return
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise ValueError(
            f"the training step changed parameter {changed[0]}{more}, which only the optimizer may, as other ranks do not "
            "know of it: keep averages and copies of weights in buffers, limit weights in the forward pass or once an "
            "epoch in the epoch callback, and leave optimizer.step() to the engine"
        )

    def concerns(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether it is the engine's own, or moves parameters of the replica."""
        own = optimizer is self._optimizer
        return own or any(id(p) in self._ids for group in optimizer.param_groups for p in group["params"])


def _sums(parameters: Sequence[Tensor]) -> list[int | None]:
    """Return the sum over the bits of each; None for one whose values lie elsewhere (in shards, of which a step sees a
    copy)."""
    with torch.no_grad():
        sums = [_sum(p.detach()) if type(p) is nn.Parameter else None for p in parameters]
        return [None if value is None else int(value) for value in sums]


def _sum(values: Tensor) -> Tensor:
    real = torch.view_as_real(values) if values.is_complex() else values
    return real.reshape(-1).view(_WHOLE[real.element_size()]).sum()


def _refuse_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Raise ValueError inside a user's step, where torch calls this for every optimizer that is about to step."""
    reference = getattr(_here, "watch", None)
    watch = None if reference is None else reference()
    if watch is not None and watch.concerns(optimizer):
        _here.watch = None
        raise ValueError(
            f"the training step called {type(optimizer).__name__}.step(), which the engine does, once for all ranks: return "
            "the loss, and leave backward() and step() out"
        )


register_optimizer_step_pre_hook(_refuse_step)
