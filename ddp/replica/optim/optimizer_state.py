"""Lays the state of a rank's own optimizer into flat tensors to be averaged, and resets it to its initial state.

Optimizers create their state at the first step, so the layout is learned from a copy that takes one. Knows nothing of
ranks."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from ddp.core.settings.averaging import Averaging
from ddp.replica.memory.flat import Section

Slot = tuple[nn.Parameter, str, Tensor]
"""(parameter, key of its state, view into a flat tensor)."""


class InnerOptimizer:
    """Applies the averaging settings to the rank's own optimizer: keep, average or reset its state.

    `sections` is empty unless the state is averaged. State that a rank does not have yet counts as zeros, the initial value
    in SGD, Adam and their variants. Raises ValueError for an optimizer whose state cannot be laid out."""

    def __init__(self, optimizer: torch.optim.Optimizer, averaging: Averaging) -> None:
        self._optimizer = optimizer
        self._begin = copy.deepcopy(optimizer.state_dict()["state"]) if averaging.resets else None
        self._rest: dict[nn.Parameter, dict[str, Any]] = {}
        self._slots: list[Slot] = []
        self.sections: list[Section] = []
        if averaging.optimizer_state:
            self._lay_out()

    def _lay_out(self) -> None:
        slots: list[tuple[nn.Parameter, str, Tensor]] = []
        for parameter, state in _probe(self._optimizer):
            self._rest[parameter] = {key: value for key, value in state.items() if not _averaged(value)}
            slots += [(parameter, key, value) for key, value in state.items() if _averaged(value)]
        for dtype in sorted({value.dtype for _, _, value in slots}, key=str):
            group = [entry for entry in slots if entry[2].dtype == dtype]
            sizes = [value.numel() for _, _, value in group]
            flat = torch.zeros(sum(sizes), dtype=dtype, device=group[0][0].device)
            self.sections.append(Section("optimizer", flat))
            for (parameter, key, value), view in zip(group, torch.split(flat, sizes), strict=True):
                self._slots.append((parameter, key, view.view(value.shape)))

    def gather(self) -> None:
        """Copy the optimizer's state into `sections`."""
        for parameter, key, view in self._slots:
            own = self._optimizer.state.get(parameter, {}).get(key)
            if own is None:
                view.zero_()
            else:
                view.copy_(own)

    def scatter(self) -> None:
        """Copy `sections` back into the optimizer's state, except state that no rank has; then reset it if the settings say
        so."""
        made = {parameter for parameter, _, view in self._slots if self._lacks(parameter) and bool(view.any())}
        for parameter in made:
            self._optimizer.state[parameter].update(copy.deepcopy(self._rest[parameter]))
        for parameter, key, view in self._slots:
            state = self._optimizer.state.get(parameter, {})
            if isinstance(state.get(key), Tensor):
                state[key].copy_(view)
            elif parameter in made:
                # step counters are on the CPU, wherever the parameters are
                state[key] = view.clone() if view.dim() else view.cpu().clone()
        self.reset()

    def reset(self) -> None:
        """Reset the optimizer to its initial state, if the settings say so."""
        if self._begin is not None:
            begin = copy.deepcopy(self._begin)  # `load_state_dict` may keep the tensors it is given
            self._optimizer.load_state_dict(self._optimizer.state_dict() | {"state": begin})

    def _lacks(self, parameter: nn.Parameter) -> bool:
        return not any(_averaged(value) for value in self._optimizer.state.get(parameter, {}).values())


def _averaged(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _probe(optimizer: torch.optim.Optimizer) -> list[tuple[nn.Parameter, dict[str, Any]]]:
    """Return the state that one step creates, by parameter; a copy of the optimizer and its parameters takes the step."""
    trial = copy.deepcopy(optimizer)
    owners: list[nn.Parameter] = []
    for group, twin in zip(optimizer.param_groups, trial.param_groups, strict=True):
        owners += group["params"]
        for parameter in twin["params"]:
            parameter.grad = torch.zeros_like(parameter)
    try:
        trial.step()
    except (TypeError, RuntimeError) as error:
        name = type(optimizer).__name__
        raise ValueError(f"the state of {name} cannot be averaged ({error}); use optimizer_state=false") from error
    twins = [parameter for group in trial.param_groups for parameter in group["params"]]
    return [(owner, dict(trial.state.get(twin, {}))) for owner, twin in zip(owners, twins, strict=True)]
