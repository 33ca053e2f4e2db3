"""Own what a step exchanges as flat tensors: gradients, buffers, and which parameters were used. Knows nothing of ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ddp.gradients.buckets import WORTHWHILE_BYTES, Plan
from ddp.gradients.storage import BucketStorage
from ddp.replica.buffers import BufferChanges, Counters, moves
from ddp.replica.flat import Empty, FlatState


class StepGradients:
    """Gradients in buckets; behind the last bucket of each data type the changes of buffers, and who was used.

    Autograd makes gradients anew in each step. They go to their places as they come (`eager`), so that no memory is taken
    twice, or all at the end, weighted in the same pass, which is faster; then `p.grad` are views. Buffers go as differences
    to what they were after the last exchange: one that does not change keeps its bits. A parameter that no rank used in a
    step has no gradient for the optimizer, as without ranks.
    """

    def __init__(
        self,
        state: FlatState,
        empty: Empty | None = None,
        plan: Plan | None = None,
        gradients: bool = True,
        eager: bool | None = None,
    ) -> None:
        """`empty` gives what a transport reduces without a copy; `plan`: buckets, else one for each data type. Without
        `gradients` they lie elsewhere. `eager`: None where they are large; never where a user's step puts
        gradients aside."""
        self._state, self._parameters = state, state.parameters
        tails, buckets = _tails(state, (plan or by_type(self._parameters)) if gradients else [])
        first, give = len(buckets) - len(tails), empty or state.ordinary
        self.early = buckets[:first]
        """Buckets that have nothing behind them: they may go before the step is over."""
        self._storage = BucketStorage(
            self._parameters,
            buckets,
            lambda number, size, dtype: give(f"gradients{number}", size, dtype),
            {first + k: (dtype, sum(sizes)) for k, (dtype, sizes) in enumerate(tails.items())},
        )
        self.flats, self.values = self._storage.flats, self._storage.values
        places = [torch.split(t, s) for t, s in zip(self._storage.tails[first:], tails.values(), strict=True)]
        self._changes = BufferChanges(state, {dtype: place[0] for dtype, place in zip(tails, places, strict=True)})
        _, self._used, self._unusual = places[-1]
        self._counters = Counters(state)
        self._members = range(len(self._parameters)) if gradients else range(0)
        self.arrived: Callable[[int], None] | None = None
        """Called with a parameter's index when its gradient is in its place during a backward pass."""
        self.sent = 0
        """Buckets that are weighted and gone."""
        size = sum(self._parameters[index].nbytes for index in self._members)
        self._hooks: list[Any] = [
            self._parameters[index].register_post_accumulate_grad_hook(partial(self._arrive, index))  # type: ignore[no-untyped-call]
            for index in (self._members if eager or self.early or (eager is None and size >= WORTHWHILE_BYTES) else ())
        ]

    def _arrive(self, index: int, parameter: Tensor) -> None:
        self._storage.place(index)
        if self.arrived is not None:
            self.arrived(index)

    def clear(self) -> None:
        """Begin a step: there are no gradients."""
        self._counters.begin()
        self.sent = 0
        for index in self._members:
            self._parameters[index].grad = None

    def undo(self) -> None:
        """Put buffers and counters back to what they were when the step began."""
        self._changes.undo()
        self._counters.undo()

    def rebase(self) -> None:
        """Count changes from here on: buffers were replaced from outside."""
        self._changes.rebase()
        self._counters.forget()

    def send(self, weight: float) -> Tensor:
        """Return the next bucket, of which all gradients are in their places, times `weight`."""
        self.sent += 1
        return self.values[self.sent - 1].mul_(weight)

    def pack(self, weight: float, gradients: float | None = None, used: Sequence[float] | None = None) -> None:
        """Bring the gradients to their places, times `weight`, and what changed in the buffers, too.

        `gradients`: another weight for these, where the loss was taken over all ranks' samples. `used`: whether each
        parameter was, where gradients lie elsewhere. Raises ValueError for a parameter that was unfrozen meanwhile.
        """
        self._state.gather()
        self._state.check_frozen()
        factor = weight if gradients is None else gradients
        flags = [float(p.grad is not None) for p in self._parameters]
        for number in range(self.sent, len(self.flats)):
            self._storage.fill(number, factor)
        flags = flags if used is None else list(used)
        if all(flags):
            self._used.fill_(1.0)
        else:
            self._used.copy_(torch.tensor(flags))
        if self._state.counters:
            self._unusual.copy_(self._counters.unusual())
        self._changes.lay(weight)

    def apart(self) -> bool:
        """Return whether counters of ranks may differ, once exchanged: `counters` take the maximum then, and `learn`."""
        return bool(self._state.counters) and bool(self._unusual)

    @property
    def counters(self) -> list[Tensor]:
        """Integer buffers, flat."""
        return self._state.counters

    def learn(self) -> None:
        """Note that all ranks hold the same counters."""
        self._counters.learn()

    def unpack(self) -> None:
        """Move the buffers on by the averaged change; take away the gradients of parameters that nobody used."""
        self._changes.take()
        flags = self.used()
        if not all(flags):
            for parameter, used in zip(self._parameters, flags, strict=True):
                if not used:
                    parameter.grad = None

    def used(self) -> list[bool]:
        """Return which parameters any rank used, once exchanged."""
        return [bool(count) for count in self._used.tolist()]

    def close(self) -> None:
        """Let go of the gradients, and leave them where autograd puts them."""
        for hook in self._hooks:
            hook.remove()
        self.clear()


def _tails(state: FlatState, buckets: Plan) -> tuple[dict[torch.dtype, list[int]], list[tuple[int, ...]]]:
    """Return by data type how many changes, flags of use and flags of counters lie behind its last bucket, and the buckets
    in such an order that these come last."""
    moved = {section.values.dtype: section.values.numel() for section in state.sections if moves(section)}
    last = {state.parameters[bucket[0]].dtype: bucket for bucket in buckets}
    last |= dict.fromkeys(sorted(moved.keys() - last.keys(), key=str) or ([] if last else [torch.float32]), ())
    tails = {dtype: [moved.get(dtype, 0), 0, 0] for dtype in last}
    # A collective of their own would cost as much as the gradients of a small model.
    tails[[*last][-1]][1:] = len(state.parameters), int(bool(state.counters))
    return tails, [*(bucket for bucket in buckets if bucket not in last.values()), *last.values()]


def by_type(parameters: Sequence[Tensor]) -> list[tuple[int, ...]]:
    """Return a bucket for each data type, in the order of their names."""
    dtypes = sorted({parameter.dtype for parameter in parameters}, key=str)
    return [tuple(index for index, p in enumerate(parameters) if p.dtype == dtype) for dtype in dtypes]
