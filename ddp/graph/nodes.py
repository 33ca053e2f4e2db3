"""The kinds of node that a flow has beside a user's own module: residual, loop, split, merge.

Owns what they compute. Must not know labels or tags.

A node raises `GraphError` without a label; the `Graph` that holds it adds the label and the shapes of the inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ddp.graph.errors import GraphError


def shape_of(value: object) -> str:
    """Return how an error shows a value: a tensor by its shape, a tuple by its items, anything else by its type."""
    if isinstance(value, Tensor):
        return str(list(value.shape))
    if isinstance(value, tuple | list):
        return "(" + ", ".join(map(shape_of, value)) + ")"
    return type(value).__name__


def _require_equal(values: tuple[Tensor, ...], what: str) -> None:
    # Strict on purpose: broadcasting would hide a wrong shape and train something else.
    if any(value.shape != values[0].shape for value in values):
        raise GraphError(f"{what} have unequal shapes {shape_of(values)}")


class Residual(nn.Module):
    """`shortcut(x) + main(x, *extra)`; without a shortcut, x itself. Shapes must be equal: nothing is broadcast."""

    def __init__(self, main: nn.Module, shortcut: nn.Module | None) -> None:
        super().__init__()
        self.main = main
        self.shortcut = shortcut

    def forward(self, x: Tensor, *extra: Any) -> Tensor:
        """Return the sum, of the shape of both summands. Raises GraphError for unequal ones."""
        kept: Tensor = x if self.shortcut is None else self.shortcut(x)
        added: Tensor = self.main(x, *extra)
        if kept.shape != added.shape:
            raise GraphError(f"shortcut and module have unequal shapes {shape_of((kept, added))}")
        return kept + added


class Loop(nn.Module):
    """`body` again and again, on its own output: the values of all iterations."""

    def __init__(self, body: nn.Module, times: int) -> None:
        super().__init__()
        self.body = body
        self.times = times

    def forward(self, x: Any, *extra: Any) -> list[Any]:
        """Return one value for each iteration; the flow goes on with the last."""
        values = [x]
        for _ in range(self.times):
            values.append(self.body(values[-1], *extra))
        return values[1:]


class Split(nn.ModuleList):
    """Every branch on the same input: a tuple of their outputs."""

    def forward(self, x: Any, *extra: Any) -> tuple[Any, ...]:
        """Return one output for each branch, in order."""
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
"""Ways to merge that have a name; `concat` along dimension 1. Shapes must fit exactly, nothing is broadcast."""


class Merge(nn.Module):
    """`op(*branches)` of the tuple that a `Split` left."""

    def __init__(self, op: Callable[..., Any]) -> None:
        super().__init__()
        self.op = op

    def forward(self, branches: tuple[Any, ...]) -> Any:
        """Return one value of the branches."""
        return self.op(*branches)
