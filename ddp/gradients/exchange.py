"""Own reduction inside one process: gradients and buffers of all replicas, summed in the order of ranks.

The result has the same bits every time. If replicas are on different kinds of devices, values are copied to the first
device and back.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ddp.gradients.step_gradients import StepGradients
from ddp.replica.memory.flat import FlatState


class Exchange:
    """Reduces the gradients and buffers of replicas with equal bits. Lists are by rank."""

    def __init__(self, states: Sequence[FlatState], eager: bool = True) -> None:
        """`eager`: move each gradient to its bucket when it arrives; False if gradients of several batches are accumulated
        elsewhere."""
        self.states = states
        self.gradients = [StepGradients(state, eager=eager) for state in self.states]
        for gradients in self.gradients:
            gradients.clear()

    @property
    def bytes(self) -> int:
        """Return the bytes that each replica sends, and receives."""
        return sum(flat.nbytes for flat in self.gradients[0].flats)

    @torch.no_grad()
    def broadcast(self) -> None:
        """Copy the first replica's state to all replicas."""
        for state in self.states:
            state.gather()
        for state, gradients in zip(self.states[1:], self.gradients[1:], strict=True):
            for flat, first in zip(state.tensors, self.states[0].tensors, strict=True):
                flat.copy_(first)
            gradients.rebase()
        self.gradients[0].rebase()

    @torch.no_grad()
    def reduce(self) -> None:
        """Sum the packed tensors of all ranks, in the order of ranks, into each of them. Counters take the maximum.

        A replica that has trained nothing since its gradients were cleared must have packed them with weight zero.
        """
        for flats in zip(*(gradients.flats for gradients in self.gradients), strict=True):
            _meet(flats, highest=False)
        for counters in zip(*(state.counters for state in self.states), strict=True):
            _meet(counters, highest=True)


def _meet(flats: Sequence[Tensor], highest: bool) -> None:
    total, *others = flats
    for other in others:
        theirs = other.to(total.device)
        total.copy_(torch.maximum(total, theirs) if highest else total + theirs)
    for other in others:
        other.copy_(total)
