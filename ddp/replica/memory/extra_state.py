"""The extra state of a model's modules (`get_extra_state`), by its names in the `state_dict`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from ddp.replica.memory.plain import plain

KEY = "_extra_state"
"""PyTorch's name for it in a module's state."""


def extra_state(model: nn.Module) -> dict[str, Any]:
    """Return the extra state of all modules. Raises NotPlain."""
    return {name: _of(name, module) for name, module in _modules(model)}


def any_extra_state(model: nn.Module) -> dict[str, Any]:
    """Return the extra state of all modules for another rank of this run, which reads any class."""
    return {name: module.get_extra_state() for name, module in _modules(model)}


def set_extra_state(model: nn.Module, state: dict[str, Any]) -> str:
    """Load extra state. Return a note on modules that it lacks ("": none)."""
    loads = [
        (name, module)
        for name, module in _modules(model)
        if type(module).set_extra_state is not nn.Module.set_extra_state
    ]
    for name, module in loads:
        if name in state:
            module.set_extra_state(state[name])
    lacks = ", ".join(name for name, _ in loads if name not in state)
    return lacks and f"the checkpoint lacks {lacks}, which begins anew"


def _modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for path, module in model.named_modules(remove_duplicate=False):
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            yield f"{path}.{KEY}".removeprefix("."), module


def _of(name: str, module: nn.Module) -> Any:
    return plain(module.get_extra_state(), f"the modules' extra state {name}")
