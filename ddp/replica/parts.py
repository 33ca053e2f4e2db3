"""What goes back from the parts of a checkpoint into a replica, checked. Knows neither folders nor books."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ddp import regular
from ddp.checkpoint.checkpoint import LARGEST_PART, Torn
from ddp.checkpoint.identity import Origin

Settings = list[dict[str, Any]]
"""What an optimizer was made with, by parameter group."""


def load(path: Path, of: Origin) -> dict[str, Any]:
    """A part, on the CPU. Raises Torn for what is no dictionary of tensors and plain containers, and for a part that is not
    `of` this rank and checkpoint."""
    try:
        with regular.opened(path, LARGEST_PART) as file:
            held = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # an unpickler raises anything
        said = (str(error) or type(error).__name__).splitlines()[0]
        raise Torn(f"{path}: not a part of a checkpoint ({said})") from error
    if not isinstance(held, dict):
        raise Torn(f"{path}: not a part of a checkpoint")
    if held.get("of") != of:
        raise Torn(f"{path}: {_told(held.get('of'))} lies where {_told(of)} belongs; put it back, or begin anew")
    return held


def _told(of: Any) -> str:
    if not isinstance(of, dict):
        return "a part of no checkpoint"
    what = "the model" if of.get("rank") is None else f"the part of rank {of['rank']}"
    return f"{what} of checkpoint {of.get('index')} of run {of.get('run')}"


def take(name: str, into: Any, values: Any) -> None:
    """Copy tensors into others of the same sizes and types. Raises Torn."""
    fits = isinstance(values, list) and len(values) == len(into)
    for own, other in zip(into, values, strict=True) if fits else ():
        fits &= isinstance(other, torch.Tensor) and _form(own) == _form(other)
    if not fits:
        raise Torn(f"the checkpoint's {name} are not those of this model; go on with its own model, or begin anew")
    with torch.no_grad():
        for own, other in zip(into, values, strict=True):
            own.copy_(other)


def settings(optimizer: torch.optim.Optimizer) -> Settings:
    """Those of an optimizer that has just been made, but for its rates, which are no part of its state here (`Rates`).

    Not read off a state: there some optimizers keep what they have counted so far."""
    return [{key: _chosen(group[key]) for key in group.keys() - {"params", "lr"}} for group in optimizer.param_groups]


def _chosen(value: Any) -> Any:
    """What a user may have chosen, in a form that nobody changes: numbers, texts, and these in a row. None for what else
    optimizers keep in their groups, such as tensors to work in."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_chosen, value))
    if isinstance(value, torch.Tensor):
        return None if value.ndim else value.item()
    return value if isinstance(value, (int, float, str)) else None


def load_into(optimizer: torch.optim.Optimizer, made_with: Settings, held: dict[str, Any]) -> None:
    """`load_state_dict`, which takes another kind of optimizer's without a word, and brings back the settings of that one.
    Raises ValueError for these, and others."""
    optimizer.load_state_dict(held["optimizer"])
    for own, group, begun in zip(made_with, optimizer.param_groups, held["settings"], strict=True):
        if lost := own.keys() - group.keys():
            raise ValueError(f"it has no {', '.join(sorted(lost))}")
        for name in own.keys() & begun.keys():  # another version of torch may know others
            if begun[name] != own[name]:
                raise ValueError(f"it was begun with {name}={begun[name]}, this one has {own[name]}")


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.layout
