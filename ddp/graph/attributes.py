"""Plain attributes of modules (a rate, a switch): what the caller sets on a graph is set on its replicas."""

from __future__ import annotations

from typing import Any

from torch import nn

PLAIN = (int, float, str, type(None))
OWN = frozenset(vars(nn.Module()))
"""PyTorch's own, modes among them."""

Attributes = list[dict[str, Any]]


def attributes(model: nn.Module) -> Attributes:
    """Those of every module, by name."""
    return [
        {name: value for name, value in vars(module).items() if isinstance(value, PLAIN) and name not in OWN}
        for module in model.modules()
    ]


def changes(before: Attributes, after: Attributes) -> Attributes:
    """What is new or different, of every module."""
    return [
        {name: value for name, value in now.items() if name not in was or was[name] != value}
        for was, now in zip(before, after, strict=True)
    ]


def put(found: Attributes, model: nn.Module) -> None:
    """Set them on the modules of another model."""
    for one, module in zip(found, model.modules(), strict=True):
        vars(module).update(one)
