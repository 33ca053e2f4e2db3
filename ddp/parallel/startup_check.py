"""Own what ranks compare before they train: models with the same parts and settings, each wrapped once. Sends no
gradient."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from ddp.gradients.storage import layout
from ddp.parallel.group import Group
from ddp.replica.memory.flat import refuse_complex, refuse_formless

Part = tuple[str, str, str, list[int], bool, list[int]]
"""(parameter or buffer, name, data type, shape, trained, strides of its gradient if it has one)."""
_owners: Any = WeakIdKeyDictionary()
"""Parameter -> weak reference to the wrapper that averages its gradient. Not an attribute, which copies and pickles would
keep."""


class ParameterGuard:
    """Remembers the parameters of a wrapped model, to detect later changes, which other ranks would not see."""

    def __init__(self, model: nn.Module) -> None:
        self._held = [
            (module._parameters, name, parameter, parameter.requires_grad, parameter.dtype, parameter.stride())
            for module in model.modules()
            for name, parameter in module._parameters.items()
            if parameter is not None
        ]
        self._model, self._modules = model, list(model.modules())
        self._known = {id(parameter) for _, _, parameter, *_ in self._held}
        self._parts = self._now()

    def check(self) -> None:
        """Raise ValueError for a parameter that was added, replaced, unfrozen, or changed in type or memory format."""
        for holder, name, parameter, trained, dtype, strides in self._held:
            present = holder.get(name)
            same = present is parameter and present.dtype is dtype and present.stride() == strides
            if same and (trained or not parameter.requires_grad):
                continue
            full = next((n for n, p in self._model.named_parameters() if p is present), name)
            self._refuse(full, "unfrozen" if same else "replaced or changed in type or memory format")
        if self._parts != self._now():
            for name, parameter in self._model.named_parameters():
                if parameter.requires_grad and id(parameter) not in self._known:
                    self._refuse(name, "added")

    def _now(self) -> list[tuple[int, ...]]:
        """Return the identities of every module's parameters and submodules. They change if one is added or replaced."""
        return [(*map(id, module._parameters.values()), *map(id, module._modules.values())) for module in self._modules]

    def _refuse(self, name: str, change: str) -> None:
        raise ValueError(
            f"parameter {name} was {change} after the model was wrapped: its gradient would stay on this rank; do that "
            "first, or close() the wrapper and wrap the model anew, on all ranks"
        )


def describe(model: nn.Module) -> list[Part]:
    """Return a description of every parameter, then of every buffer. Raises ValueError for one whose values cannot be
    compared or sent."""
    named: list[tuple[str, str, Tensor]] = [
        *(("parameter", name, tensor) for name, tensor in model.named_parameters()),
        *(("buffer", name, tensor) for name, tensor in model.named_buffers()),
    ]
    refuse_formless(((f"{kind} {name}", tensor) for kind, name, tensor in named), "on all ranks, then wrap it")
    return [(kind, name, str(t.dtype)[6:], list(t.shape), t.requires_grad, _strides(t)) for kind, name, t in named]


def _strides(tensor: Tensor) -> list[int]:
    return list(layout(tensor).stride()) if tensor.requires_grad else []


def difference(mine: list[Part], theirs: list[Part], me: str, them: str) -> str:
    """Describe the first part in which two models differ; empty if they do not."""
    for index in range(max(len(mine), len(theirs))):
        if index >= len(mine) or index >= len(theirs):
            more, fewer = (them, me) if index >= len(mine) else (me, them)
            kind, name = (theirs if index >= len(mine) else mine)[index][:2]
            return f"{more} has {kind} {name}, {fewer} has not ({len(mine)} parts on {me}, {len(theirs)} on {them})"
        if mine[index] != theirs[index]:
            return f"{_in_words(mine[index])} on {me}, {_in_words(theirs[index])} on {them}"
    return ""


def _in_words(part: Part) -> str:
    kind, name, dtype, shape, trained, strides = part
    laid = f" in strides {strides}" if strides and strides != list(torch.empty(shape, device="meta").stride()) else ""
    return f"{kind} {name} is {dtype} {shape}{laid}{'' if trained or kind == 'buffer' else ', frozen,'}"


def agree(group: Group, models: Iterable[nn.Module], settings: dict[str, Any]) -> None:
    """Raise ValueError on all ranks if the models or settings of a rank differ from those of rank 0. Raises RankLost."""
    parts = [list(part) for model in models for part in describe(model)]
    mine = json.dumps([settings, parts])
    texts = group.exchange(mine)
    for rank, text in enumerate(texts):
        if text == texts[0]:
            continue
        try:
            (first_settings, first), (its_settings, its) = json.loads(texts[0]), json.loads(text)
        except ValueError:
            raise ValueError(
                f"rank {rank} and rank 0 are not at the same place: they must wrap the same models"
            ) from None
        what = difference(its, first, f"rank {rank}", "rank 0")
        if not what:
            name = next(name for name in first_settings if first_settings[name] != its_settings.get(name))
            what = f"{name} is {its_settings.get(name)!r} on rank {rank}, {first_settings[name]!r} on rank 0"
        raise ValueError(f"ranks do not agree: {what}; build the same model, with the same settings, on every rank")


def claim(models: Iterable[nn.Module], owner: object) -> None:
    """Register `owner` as the wrapper that averages the gradients of the trained parameters. Raises ValueError for a
    parameter that is complex or has an owner."""
    named = {id(p): (name, p) for model in models for name, p in model.named_parameters() if p.requires_grad}.values()
    refuse_complex(named)
    for name, parameter in named:
        if _owner(parameter) is not None:
            raise ValueError(
                f"parameter {name} is wrapped already: its gradient would be averaged twice; use the wrapper that there is, "
                "or close() it before another"
            )
    for _, parameter in named:
        _owners[parameter] = weakref.ref(owner)


def _owner(parameter: nn.Parameter) -> object | None:
    owner: weakref.ref[object] | None = _owners.get(parameter)
    return owner() if owner is not None else None


def release(models: Iterable[nn.Module], owner: object) -> None:
    """Undo `claim`."""
    for model in models:
        for parameter in model.parameters():
            if _owner(parameter) is owner:
                del _owners[parameter]
