"""What a step exchanges, as flat tensors: gradients, buffers, and which parameters were used. Knows nothing of ranks."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ddp.replica.buffers import BufferChanges, Counters, moves
from ddp.replica.flat import Empty, FlatState
from ddp.replica.sparse import dense


class FlatGradients:
    """What a step exchanges, one flat tensor per data type: gradients, floating-point buffers, and which were used.

    Gradients live there (`p.grad` are views), so that nothing is copied to exchange them. Buffers go as differences to what
    they were after the last exchange: one that does not change keeps its bits. A parameter that no rank used in a step has
    no gradient for the optimizer, as without ranks.
    """

    def __init__(self, state: FlatState, empty: Empty | None = None, gradients: bool = True) -> None:
        """`empty` gives what a transport reduces without a copy. Without `gradients` they lie elsewhere."""
        self._state, parameters = state, state.parameters
        living = parameters if gradients else []
        moved = {section.values.dtype: section.values.numel() for section in state.sections if moves(section)}
        self.flats: list[Tensor] = []
        self.gradients: list[Tensor] = []
        """Of each of these the gradients alone."""
        self._used, self._unusual = torch.zeros(0), torch.zeros(0)
        views: dict[int, Tensor] = {}
        changes: dict[torch.dtype, Tensor] = {}
        for dtype in sorted({p.dtype for p in living} | set(moved) or {torch.float32}, key=str):
            group = [parameter for parameter in living if parameter.dtype == dtype]
            # Who was used, and whether counters differ, travels behind the first type: a collective of its own would cost as
            # much as the gradients.
            flags = (0, 0) if self.flats else (len(parameters), int(bool(state.counters)))
            sizes = [*(p.numel() for p in group), moved.get(dtype, 0), *flags]
            flat = (empty or state.ordinary)(f"gradients{len(self.flats)}", sum(sizes), dtype).zero_()
            *parts, change, used, unusual = torch.split(flat, sizes)
            self.gradients.append(flat[: sum(sizes[:-3])])
            if not self.flats:
                self._used, self._unusual = used, unusual
            self.flats.append(flat)
            changes[dtype] = change
            views |= {id(p): view.view(p.shape) for p, view in zip(group, parts, strict=True)}
        self._touched = [0.0] * len(parameters)
        self._gradients = [(parameter, views[id(parameter)]) for parameter in living]
        self._changes, self._counters = BufferChanges(state, changes), Counters(state)
        self._hooks: list[Any] = [
            parameter.register_post_accumulate_grad_hook(partial(self._touch, index))  # type: ignore[no-untyped-call]
            for index, parameter in enumerate(parameters)
        ]

    def close(self) -> None:
        """Gradients are of no interest any more, and live where autograd puts them."""
        for hook in self._hooks:
            hook.remove()
        for parameter, _ in self._gradients:
            parameter.grad = None

    def _touch(self, index: int, parameter: Tensor) -> None:
        self._touched[index] = 1.0

    def zero(self) -> None:
        """Clear the gradients before a backward pass."""
        self._touched = [0.0] * len(self._touched)
        self._counters.begin()
        for flat in self.flats:
            flat.zero_()
        for parameter, view in self._gradients:
            parameter.grad = view

    def undo(self) -> None:
        """Put buffers and counters back to what they were when the step began."""
        self._changes.undo()
        self._counters.undo()

    def rebase(self) -> None:
        """Buffers were replaced from outside: changes count from here."""
        self._changes.rebase()
        self._counters.forget()

    def gather(self) -> None:
        """Take in gradients that were put in place of the views, or taken away, from outside."""
        for index, (parameter, view) in enumerate(self._gradients):
            gradient = parameter.grad
            if gradient is view:
                if not self._touched[index] and bool(view.any()):  # written to by the step itself
                    self._touched[index] = 1.0
                continue
            if gradient is None:
                view.zero_()
            else:
                self._touched[index] = 1.0
                view.copy_(dense(gradient))
            parameter.grad = view

    def pack(self, weight: float, gradients: float | None = None) -> None:
        """Weigh the gradients, and lay what changed in the buffers beside them with the same weight.

        `gradients`: another weight for these, where the loss was taken over all ranks' samples. Raises ValueError for a
        parameter that was unfrozen meanwhile."""
        self._state.gather()
        self._state.check_frozen()
        self.gather()  # a step may clear gradients itself, and leave others in their place
        if all(self._touched):
            self._used.fill_(1.0)
        else:
            self._used.copy_(torch.tensor(self._touched))
        if self._state.counters:
            self._unusual.copy_(self._counters.unusual())
        for flat in self.flats:
            flat.mul_(weight if gradients is None else gradients)
        if weight:  # else zero, whatever a buffer holds
            self._changes.lay(weight)

    def apart(self) -> bool:
        """Whether counters of ranks may differ, once exchanged: `counters` are to take the maximum then, and `learn`."""
        return bool(self._state.counters) and bool(self._unusual)

    @property
    def counters(self) -> list[Tensor]:
        """Integer buffers, flat."""
        return self._state.counters

    def learn(self) -> None:
        """All ranks hold the same counters."""
        self._counters.learn()

    def unpack(self) -> None:
        """Move the buffers on by the averaged change; take away the gradients of parameters that nobody used."""
        self._changes.take()
        flags = self.used()
        if not all(flags):
            for parameter, used in zip(self._state.parameters, flags, strict=True):
                if not used:
                    parameter.grad = None

    def used(self) -> list[bool]:
        """Which parameters any rank used, once exchanged."""
        return [bool(count) for count in self._used.tolist()]
