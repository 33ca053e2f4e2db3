"""State of an optimizer that kept steps lack: in its parameter groups, as timm's Lamb counts there, or in lists.

Must not use the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from bench.audit.repeated.repeated_step import several

STEPS = 2
SMALL = 1e-3
"""Size of the gradients of the test steps."""


def unkept(optimizer: Callable[[list[nn.Parameter]], Any], parameters: Iterable[nn.Parameter]) -> str:
    """Say what steps of an optimizer change besides parameters and the tensors and numbers of its state; empty:
    nothing."""
    own = [nn.Parameter(parameter.detach().clone(), parameter.requires_grad) for parameter in parameters]
    for parameter in own:
        parameter.grad = torch.full_like(parameter, SMALL) if parameter.requires_grad else None
    optimizers = several(optimizer(list(own)))
    before = list(_numbers(optimizers))
    try:
        for _ in range(STEPS):
            for each in optimizers:
                each.step()
    except (RuntimeError, TypeError, ValueError):  # it needs other gradients than these
        return ""
    for first, then in zip(before, _numbers(optimizers), strict=True):
        for key in (key for key in then if then[key] != first.get(key)):
            return f"the optimizer keeps {key!r} in its parameter groups, which kept steps do not contain"
    for each in optimizers:
        for state in each.state.values():
            for key, value in state.items():
                if not isinstance(value, (Tensor, bool, int, float, type(None))):
                    return (
                        f"the optimizer keeps {key!r} as {type(value).__name__}, of which no step's state has tensors"
                    )
    return ""


def _numbers(optimizers: Iterable[Any]) -> Iterator[dict[str, float]]:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield {key: value for key, value in group.items() if isinstance(value, (bool, int, float))}
