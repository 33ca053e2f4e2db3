"""Combines several optimizers of one model into one: each updates its own parameters, and all step together."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from ddp.replica.memory.flat import FlatState
from ddp.replica.optim.learning_rates import own_rates


class Several:
    """Several optimizers behind the interface that the engine needs. `param_groups` are those of all, in order."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self.parts = tuple(parts)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups themselves; loading a state replaces them."""
        return [group for part in self.parts for group in part.param_groups]

    @property
    def state(self) -> MutableMapping[Any, Any]:
        """The states of all optimizers, by parameter."""
        return _States(self.parts)

    def step(self) -> None:
        """Take one step with each."""
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of all."""
        for part in self.parts:
            part.zero_grad(set_to_none=set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the state in the form of one optimizer with all groups; other entries of each optimizer are under
        `more`."""
        whole: dict[str, Any] = {"state": {}, "param_groups": [], "more": []}
        first = 0
        for part in self.parts:
            own = part.state_dict()
            whole["state"] |= {number + first: state for number, state in own.pop("state").items()}
            groups = own.pop("param_groups")
            whole["param_groups"] += [
                {**group, "params": [number + first for number in group["params"]]} for group in groups
            ]
            whole["more"].append(own)
            first += _count(part)
        return whole

    def load_state_dict(self, whole: dict[str, Any]) -> None:
        """Load what `state_dict` returned. Raises ValueError or KeyError for a state of other optimizers."""
        groups, more = list(whole["param_groups"]), whole["more"]
        if len(groups) != len(self.param_groups) or len(more) != len(self.parts):
            raise ValueError(f"it is of other optimizers than these {len(self.parts)}")
        first = 0
        for part, rest in zip(self.parts, more, strict=True):
            count = _count(part)
            these, groups = groups[: len(part.param_groups)], groups[len(part.param_groups) :]
            state = {n - first: value for n, value in whole["state"].items() if first <= n < first + count}
            own = [{**group, "params": [number - first for number in group["params"]]} for group in these]
            part.load_state_dict({**rest, "state": state, "param_groups": own})
            first += count


class _States(MutableMapping[Any, Any]):
    """The states of several optimizers as one mapping: a parameter's state is in the optimizer that updates it."""

    def __init__(self, parts: tuple[torch.optim.Optimizer, ...]) -> None:
        self._parts = parts
        self._owner = {id(p): part for part in parts for group in part.param_groups for p in group["params"]}

    def _of(self, parameter: Any) -> MutableMapping[Any, Any]:
        owner = self._owner.get(id(parameter))
        if owner is None:  # it is being assigned to another parameter
            owner = next((part for part in self._parts if parameter in part.state), None)
        if owner is None:
            raise KeyError(parameter)
        return owner.state

    def __getitem__(self, parameter: Any) -> Any:
        return self._of(parameter)[parameter]

    def __setitem__(self, parameter: Any, state: Any) -> None:
        self._of(parameter)[parameter] = state

    def __delitem__(self, parameter: Any) -> None:
        del self._of(parameter)[parameter]

    def __contains__(self, parameter: object) -> bool:
        return any(parameter in part.state for part in self._parts)

    def get(self, parameter: Any, default: Any = None) -> Any:
        """Return the parameter's state, or `default`; unlike `[]`, which creates a missing one as torch does."""
        return self._of(parameter)[parameter] if parameter in self else default

    def pop(self, parameter: Any, default: Any = None) -> Any:
        """Remove and return the parameter's state; `default` if there is none."""
        return self._of(parameter).pop(parameter) if parameter in self else default

    def __iter__(self) -> Iterator[Any]:
        return (parameter for part in self._parts for parameter in part.state)

    def __len__(self) -> int:
        return sum(len(part.state) for part in self._parts)


def as_one(made: Any) -> Any:
    """Return a list or tuple of optimizers as one optimizer; return anything else unchanged.

    Raise ValueError for a parameter that belongs to two of them."""
    if not isinstance(made, (list, tuple)) or not made or not all(hasattr(part, "param_groups") for part in made):
        return made
    owners: dict[int, int] = {}
    for number, part in enumerate(made):
        for parameter in (p for group in part.param_groups for p in group["params"]):
            if (other := owners.setdefault(id(parameter), number)) != number:
                raise ValueError(
                    f"optimizers {other} and {number} of the list both have a parameter of shape "
                    f"{list(cast(Tensor, parameter).shape)}, which would be moved twice in a step: give each its own"
                )
    return made[0] if len(made) == 1 else Several(made)


Settings = list[dict[str, Any]]
"""The options that an optimizer was created with, by parameter group."""


def settings_of(optimizer: torch.optim.Optimizer) -> Settings:
    """Return the options of a newly created optimizer, without learning rates (`Rates` owns these). Not read from a
    `state_dict`, as some optimizers store counts there."""
    return [{key: _chosen(group[key]) for key in group.keys() - {"params", "lr"}} for group in optimizer.param_groups]


def _chosen(value: Any) -> Any:
    """Return an option that a user may have set, in immutable form: numbers, texts and sequences of these. Return None for
    other entries of a group, such as working tensors."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_chosen, value))
    if isinstance(value, Tensor):
        return None if value.ndim else value.item()
    return value if isinstance(value, (int, float, str)) else None


def members(optimizer: Any) -> tuple[torch.optim.Optimizer, ...]:
    """Return the optimizers that `optimizer` consists of: itself, or several."""
    return optimizer.parts if isinstance(optimizer, Several) else (optimizer,)


def tensors_kept(optimizer: Any) -> list[Tensor] | None:
    """Return the tensors of an optimizer's state in the order of PyTorch's `state_dict`; None if its state has another
    form."""
    hooks = "_optimizer_state_dict_pre_hooks", "_optimizer_state_dict_post_hooks"
    plain = getattr(type(optimizer), "state_dict", None) is torch.optim.Optimizer.state_dict
    if not plain or any(getattr(optimizer, name, 1) for name in hooks):
        return None
    tensors = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    return tensors if all(type(tensor) is Tensor for tensor in tensors) else None


def _count(part: torch.optim.Optimizer) -> int:
    return sum(len(group["params"]) for group in part.param_groups)


def usable(made: Any, state: FlatState) -> torch.optim.Optimizer:
    """Return the result of the optimizer's factory. Raises ValueError unless it can train the model of this state."""
    if not isinstance(getattr(made, "param_groups", None), list):
        raise ValueError(f"the optimizer's factory must return an optimizer of PyTorch, not {made!r:.60}")
    for part in members(made):
        _refuse_closure(part)
        own_rates(part)
    if any("initial_lr" in group for group in made.param_groups):
        raise ValueError(
            "a scheduler of PyTorch holds the optimizer, and rates are a function of the samples that all ranks have seen: "
            "leave it out, and give schedule=lambda seen: factor, of the fraction seen from 0 to 1"
        )
    own = {id(parameter) for _, parameter in state.named}
    known = [id(parameter) in own for group in made.param_groups for parameter in group["params"]]
    if own and not any(known):
        raise ValueError(
            "the optimizer has none of the model's parameters, so nothing would be trained: make it of those that its "
            "factory is given"
        )
    if not all(known):
        raise ValueError(
            f"the optimizer has {known.count(False)} of {len(known)} parameters from elsewhere, which each rank would train "
            "for itself and the result would lack: make them parameters of the model"
        )
    optimizer: torch.optim.Optimizer = made
    return optimizer


def _refuse_closure(made: torch.optim.Optimizer) -> None:
    closure = inspect.signature(made.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise ValueError(
            f"{type(made).__name__} asks for the loss several times in a step, and here a step is one forward and one "
            "backward pass: take an optimizer whose step needs no closure, such as SGD or Adam"
        )
