"""Detects a training step that changes parameters itself, which only the optimizer may do, and names the parameter.

Other ranks would not know of such a change. Every eighth step compares the version counters that torch keeps per tensor
(this costs a small model half a percent of these steps). Steps 0, 1, 2, 4, 8, ... compare the bits of all parameters as
well, since writes through `.data` do not change the version. Knows nothing of ranks."""

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
"""Element size in bytes -> integer type to read the bits as."""
EVERY = 8
"""Steps between two comparisons of versions."""
_version = attrgetter("_version")
_here = threading.local()
"""`watch`: the guard whose step this thread is in. Replicas in threads of one process have one each."""


class StepParameterGuard:
    """Watches the parameters of a replica between `begin` and `end`, while the user's code runs."""

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]], optimizer: torch.optim.Optimizer) -> None:
        self._names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self._ids = {id(parameter) for parameter in self._parameters}
        self._optimizer = optimizer
        self._steps = 0
        self._versions: list[int] = []
        """Version of each parameter at `begin`; empty in a step that is not checked."""
        self._bits: list[int | None] = []
        """Sum over the bits of each parameter at `begin`; empty in a step that is not checked."""
        self._self = ref(self)

    def begin(self) -> None:
        """Begin watching: the user's code runs next."""
        steps = self._steps
        self._steps = steps + 1
        rarely = steps & (steps - 1) == 0
        self._bits = _sums(self._parameters) if rarely else []
        self._versions = list(map(_version, self._parameters)) if rarely or steps % EVERY == 0 else []
        _here.watch = self._self

    def end(self) -> None:
        """End watching, after the backward pass. Raises ValueError that names a changed parameter."""
        _here.watch = None
        if self._versions and (versions := list(map(_version, self._parameters))) != self._versions:
            self._refuse(self._versions, versions)
        if self._bits:
            self._refuse(self._bits, _sums(self._parameters))

    def _refuse(self, before: Sequence[int | None], after: Sequence[int | None]) -> None:
        """Raise ValueError if a parameter changed. A shard that was gathered or freed in between (None) is not compared."""
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
        """Return whether `optimizer` is the engine's own, or updates parameters of the replica."""
        own = optimizer is self._optimizer
        return own or any(id(p) in self._ids for group in optimizer.param_groups for p in group["params"])


def _sums(parameters: Sequence[Tensor]) -> list[int | None]:
    """Return the sum over the bits of each parameter; None for a sharded one, of which a step sees only a copy."""
    with torch.no_grad():
        sums = [_sum(p.detach()) if type(p) is nn.Parameter else None for p in parameters]
        return [None if value is None else int(value) for value in sums]


def _sum(values: Tensor) -> Tensor:
    real = torch.view_as_real(values) if values.is_complex() else values
    return real.reshape(-1).view(_WHOLE[real.element_size()]).sum()


def _refuse_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Raise ValueError if a user's step calls an optimizer: torch runs this hook before every optimizer step."""
    reference = getattr(_here, "watch", None)
    watch = None if reference is None else reference()
    if watch is not None and watch.concerns(optimizer):
        _here.watch = None
        raise ValueError(
            f"the training step called {type(optimizer).__name__}.step(), which the engine does, once for all ranks: return "
            "the loss, and leave backward() and step() out"
        )


HOOK = register_optimizer_step_pre_hook(_refuse_step)
"""Distinguishes this hook from a user's."""
