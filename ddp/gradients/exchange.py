"""Own reduction inside one process: gradients and buffers of all replicas, summed in the order of ranks.

The same bits every time. On devices of several kinds values travel to the first one and back; nothing else is asked of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ddp.gradients.step_gradients import StepGradients
from ddp.replica.flat import FlatState


class Exchange:
    """Gradients and buffers of replicas that hold the same bits, by rank."""

    def __init__(self, states: Sequence[FlatState], eager: bool = True) -> None:
        """`eager`: gradients go to their places as they come; not where those of several batches are added up elsewhere."""
        self.states = states
        self.gradients = [StepGradients(state, eager=eager) for state in self.states]
        for gradients in self.gradients:
            gradients.clear()

    @property
    def bytes(self) -> int:
        """Return what a replica brings in, and takes, in bytes."""
        return sum(flat.nbytes for flat in self.gradients[0].flats)

    @torch.no_grad()
    def broadcast(self) -> None:
        """Make all replicas the first one."""
        for state in self.states:
            state.gather()
        for state, gradients in zip(self.states[1:], self.gradients[1:], strict=True):
            for flat, first in zip(state.tensors, self.states[0].tensors, strict=True):
                flat.copy_(first)
            gradients.rebase()
        self.gradients[0].rebase()

    @torch.no_grad()
    def reduce(self) -> None:
        """Sum what every rank has packed, in the order of ranks, into all of them; counters take the maximum.

        A replica that trained nothing since its gradients were cleared has packed it with weight zero.
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
