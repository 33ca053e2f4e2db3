"""Repeats the optimizer's steps since two ranks last agreed, to find out on which of them a bit has flipped.

Every step updates both replicas with the same gradients. From the last common parameters and these gradients, the optimizer
reproduces the bits of a sound replica; the rank with other bits is the faulty one. Owns the data for that: one copy of the
state, and the gradients of every step since. Knows neither ranks nor collectives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from ddp.replica.optim.learning_rates import set_rates
from ddp.replica.optim.optimizers import members

Gradients = list[Tensor | None]


class RepeatableSteps:
    """The steps of one rank's optimizer since `mark`."""

    def __init__(self, parameters: Sequence[Tensor], optimizer: torch.optim.Optimizer) -> None:
        self._parameters, self._optimizer = parameters, optimizer
        self._marked: tuple[list[Tensor], dict[str, Any]] | None = None
        self._steps: list[tuple[Gradients, list[Any]]] = []
        """Gradients and learning rates of each optimizer step."""
        self._repeating = False
        members(optimizer)[0].register_step_pre_hook(self._note)

    def mark(self) -> None:
        """Copy the present state, and forget the steps before it."""
        self._marked = [p.detach().clone() for p in self._parameters], deepcopy(self._optimizer.state_dict())
        self._steps = []

    def forget(self) -> None:
        """Forget the state and the steps, and record none until the next `mark`."""
        self._marked, self._steps = None, []

    def _note(self, *_: Any) -> None:
        if self._marked is None or self._repeating:
            return
        gradients = [None if p.grad is None else p.grad.detach().clone() for p in self._parameters]
        self._steps.append((gradients, [group["lr"] for group in self._optimizer.param_groups]))

    @torch.no_grad()
    def sound(self) -> bool:
        """Return whether repeating the steps gives the present parameters; True if nothing was marked. Changes nothing."""
        if self._marked is None:
            return True
        before, state = self._marked
        with self._set_aside() as now:
            for own, value in zip(self._parameters, before, strict=True):
                own.copy_(value)
            self._optimizer.load_state_dict(deepcopy(state))  # load_state_dict keeps the tensors that it is given
            for gradients, rates in self._steps:
                for own, gradient in zip(self._parameters, gradients, strict=True):
                    own.grad = None if gradient is None else gradient.clone()
                set_rates(self._optimizer, rates)
                self._optimizer.step()
            return all(map(_same_bits, self._parameters, now))

    @contextmanager
    def _set_aside(self) -> Iterator[list[Tensor]]:
        """Yield the present parameters, and restore everything that a repetition changes."""
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
