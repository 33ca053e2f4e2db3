"""The kinds of node in a flow besides a user's own module: residual, loop, split, merge.

Owns what they compute. Must not know labels or tags. A node raises `GraphError` without a label; the `Graph` that contains
it adds the label and the shapes of the inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ddp.graph.errors import GraphError


def shape_of(value: object) -> str:
    """Describe a value for an error: a tensor by its shape, a tuple by its items, anything else by its type."""
    if isinstance(value, Tensor):
        return str(list(value.shape))
    if isinstance(value, tuple | list):
        return "(" + ", ".join(map(shape_of, value)) + ")"
    return type(value).__name__


def _require_equal(values: tuple[Tensor, ...], what: str) -> None:
    # Strict on purpose: broadcasting would hide a wrong shape and train another model.
    if any(value.shape != values[0].shape for value in values):
        raise GraphError(f"{what} have unequal shapes {shape_of(values)}")


class Residual(nn.Module):
    """Computes `shortcut(x) + main(x, *extra)`; without a shortcut, `x + main(x, *extra)`. Shapes must be equal: no
    broadcasting."""

    def __init__(self, main: nn.Module, shortcut: nn.Module | None) -> None:
        super().__init__()
        self.main = main
        self.shortcut = shortcut

    def forward(self, x: Tensor, *extra: Any) -> Tensor:
        """Return the sum. Raises GraphError if the shapes are not equal."""
        kept: Tensor = x if self.shortcut is None else self.shortcut(x)
        added: Tensor = self.main(x, *extra)
        if kept.shape != added.shape:
            raise GraphError(f"shortcut and module have unequal shapes {shape_of((kept, added))}")
        return kept + added


class Loop(nn.Module):
    """Applies `body` repeatedly to its own output."""

    def __init__(self, body: nn.Module, times: int) -> None:
        super().__init__()
        self.body = body
        self.times = times

    def forward(self, x: Any, *extra: Any) -> list[Any]:
        """Return the value of each iteration. The flow continues with the last one."""
        values = [x]
        for _ in range(self.times):
            values.append(self.body(values[-1], *extra))
        return values[1:]


class Split(nn.ModuleList):
    """Applies every branch to the same input."""

    def forward(self, x: Any, *extra: Any) -> tuple[Any, ...]:
        """Return the output of each branch, in order."""
        return tuple(branch(x, *extra) for branch in self)


def _add(*values: Tensor) -> Tensor:
    _require_equal(values, "branches to add")
    return torch.stack(values).sum(0) if len(values) > 2 else values[0] + values[1]


def _mean(*values: Tensor) -> Tensor:
    _require_equal(values, "branches to average")
    return torch.stack(values).mean(0)


def _around(value: Tensor) -> tuple[int, ...]:
    return (value.shape[0], *value.shape[2:])


def _concat(*values: Tensor) -> Tensor:
    if any(value.dim() < 2 or _around(value) != _around(values[0]) for value in values):
        raise GraphError(f"branches to concatenate differ outside dimension 1: shapes {shape_of(values)}")
    return torch.cat(values, dim=1)


MERGES: dict[str, Callable[..., Tensor]] = {"add": _add, "mean": _mean, "concat": _concat}
"""Name -> function that merges branches; `concat` is along dimension 1. Shapes must fit exactly: no broadcasting."""


class Merge(nn.Module):
    """Applies `op(*branches)` to the tuple that a `Split` returned."""

    def __init__(self, op: Callable[..., Any]) -> None:
        super().__init__()
        self.op = op

    def forward(self, branches: tuple[Any, ...]) -> Any:
        """Return the merged value of the branches."""
        return self.op(*branches)
