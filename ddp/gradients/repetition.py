"""Repeats the optimizer's steps since two ranks were last alike, so that it shows in which of them a bit has flipped.

Every step moves both replicas by the same gradients. From the last parameters that were alike, with those gradients, the
optimizer comes to the bits that a sound replica has; a rank that has others is the one. Owns what is kept for that: the
state once, and the gradients of every step since. Knows neither ranks nor collectives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from ddp.replica.optimizers import members

Gradients = list[Tensor | None]


class RepeatableSteps:
    """The steps of one rank's optimizer since `mark`."""

    def __init__(self, parameters: Sequence[Tensor], optimizer: torch.optim.Optimizer) -> None:
        self._parameters, self._optimizer = parameters, optimizer
        self._marked: tuple[list[Tensor], dict[str, Any]] | None = None
        self._steps: list[tuple[Gradients, list[Any]]] = []
        """Gradients and learning rates, as the optimizer met them."""
        self._repeating = False
        members(optimizer)[0].register_step_pre_hook(self._note)

    def mark(self) -> None:
        """Keep the state as it is, and forget the steps before."""
        self._marked = [p.detach().clone() for p in self._parameters], deepcopy(self._optimizer.state_dict())
        self._steps = []

    def forget(self) -> None:
        """Keep nothing, until the next mark."""
        self._marked, self._steps = None, []

    def _note(self, *_: Any) -> None:
        if self._marked is None or self._repeating:
            return
        gradients = [None if p.grad is None else p.grad.detach().clone() for p in self._parameters]
        self._steps.append((gradients, [group["lr"] for group in self._optimizer.param_groups]))

    @torch.no_grad()
    def sound(self) -> bool:
        """Return whether the parameters are those that the same steps give again; True if nothing was marked. Leaves all as
        it is."""
        if self._marked is None:
            return True
        before, state = self._marked
        with self._set_aside() as now:
            for own, value in zip(self._parameters, before, strict=True):
                own.copy_(value)
            self._optimizer.load_state_dict(deepcopy(state))  # it takes the tensors that it is given
            for gradients, rates in self._steps:
                for own, gradient in zip(self._parameters, gradients, strict=True):
                    own.grad = None if gradient is None else gradient.clone()
                for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate
                self._optimizer.step()
            return all(map(_same_bits, self._parameters, now))

    @contextmanager
    def _set_aside(self) -> Iterator[list[Tensor]]:
        """Put back afterwards what a repetition changes; give the parameters as they are."""
        now, state = [p.detach().clone() for p in self._parameters], deepcopy(self._optimizer.state_dict())
        gradients, self._repeating = [p.grad for p in self._parameters], True
        try:
            yield now
        finally:
            for own, value, gradient in zip(self._parameters, now, gradients, strict=True):
                own.copy_(value)
                own.grad = gradient
            self._optimizer.load_state_dict(state)
            self._repeating = False


def _same_bits(left: Tensor, right: Tensor) -> bool:
    return torch.equal(left.contiguous().view(-1).view(torch.uint8), right.contiguous().view(-1).view(torch.uint8))
