"""Own the flat tensors that a step exchanges: gradients, buffers, and which parameters were used. Knows nothing of
ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ddp.gradients.buckets import WORTHWHILE_BYTES, Plan
from ddp.gradients.storage import BucketStorage
from ddp.replica.memory.buffers import BufferChanges, Counters, moves
from ddp.replica.memory.flat import Empty, FlatState


class StepGradients:
    """Gradients in buckets. The last bucket of each data type also holds the changes of buffers; the last of all holds
    which parameters were used.

    Autograd allocates gradients anew in each step. They are moved to their buckets as they arrive (`eager`), which saves
    memory, or all at the end, together with their weight, which is faster; `p.grad` is then a view. Buffers are exchanged
    as differences from the last exchange, so a buffer that does not change keeps its bits. A parameter that no rank used in
    a step has no gradient for the optimizer, as in training without ranks.
    """

    def __init__(
        self,
        state: FlatState,
        empty: Empty | None = None,
        plan: Plan | None = None,
        gradients: bool = True,
        eager: bool | None = None,
    ) -> None:
        """`empty`: allocates memory that the transport reduces without a copy. `plan`: buckets; None: one for each data
        type. `gradients=False`: gradients are kept elsewhere. `eager`: None: only if gradients are large; must be False if
        the step puts gradients aside."""
        self._state, self._parameters = state, state.parameters
        tails, buckets = _tails(state, (plan or by_type(self._parameters)) if gradients else [])
        first, give = len(buckets) - len(tails), empty or state.ordinary
        self.early = buckets[:first]
        """Buckets without buffers or flags behind the gradients: they can be sent before the step ends."""
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
        """Called in a backward pass with the index of each parameter whose gradient is in its bucket."""
        self.sent = 0
        """Number of buckets weighted and sent."""
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
        """Begin a step without gradients."""
        self._changes.begin()
        self._counters.begin()
        self.sent = 0
        for index in self._members:
            self._parameters[index].grad = None

    def undo(self) -> None:
        """Restore buffers and counters to their values at the start of the step."""
        self._changes.undo()
        self._counters.undo()

    @property
    def bases(self) -> list[Tensor]:
        """Return what the changes of buffers are measured from."""
        return self._changes.bases

    def rebase(self, bases: Sequence[Tensor] = ()) -> None:
        """Take the present buffers as the base of further changes, after they were replaced from outside; or `bases`, if
        they were replaced by those of a rank with these."""
        self._changes.rebase(bases)
        self._counters.forget()

    def send(self, weight: float) -> Tensor:
        """Return the next bucket times `weight`. All of its gradients must be in their places."""
        self.sent += 1
        return self.values[self.sent - 1].mul_(weight)

    def pack(self, weight: float, gradients: float | None = None, used: Sequence[float] | None = None) -> None:
        """Copy the gradients and the changes of buffers, times `weight`, to their buckets.

        `gradients`: another weight for the gradients, if the loss is a mean over all ranks' samples. `used`: whether each
        parameter was used, if gradients are kept elsewhere. Raises ValueError for a parameter that was unfrozen meanwhile.
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
        """Return, after the exchange, whether counters may differ between ranks. If so, take their maximum and call
        `learn`."""
        return bool(self._state.counters) and bool(self._unusual)

    @property
    def counters(self) -> list[Tensor]:
        """Return the integer buffers as flat tensors."""
        return self._state.counters

    def learn(self) -> None:
        """Note that all ranks have the same counters."""
        self._counters.learn()

    def unpack(self) -> None:
        """Add the averaged changes to the buffers, and remove the gradients of parameters that no rank used."""
        self._changes.take()
        flags = self.used()
        if not all(flags):
            for parameter, used in zip(self._parameters, flags, strict=True):
                if not used:
                    parameter.grad = None

    def used(self) -> list[bool]:
        """Return, after the exchange, whether any rank used each parameter."""
        return [bool(count) for count in self._used.tolist()]

    def close(self) -> None:
        """Remove the hooks and clear the gradients."""
        for hook in self._hooks:
            hook.remove()
        self.clear()


def sent(state: FlatState) -> tuple[int, int]:
    """Return the bytes that a rank sends in a step, and the number of collectives without early buckets."""
    tails, _ = _tails(state, by_type(state.parameters))
    behind = sum(dtype.itemsize * sum(sizes) for dtype, sizes in tails.items())
    return sum(parameter.nbytes for parameter in state.parameters) + behind, len(tails)


def _tails(state: FlatState, buckets: Plan) -> tuple[dict[torch.dtype, list[int]], list[tuple[int, ...]]]:
    """Return (tails, buckets). `tails`: data type -> numbers of buffer elements, usage flags and counter flags behind its
    last bucket. The last bucket of each data type is moved to the end."""
    moved = {section.values.dtype: section.values.numel() for section in state.sections if moves(section)}
    last = {state.parameters[bucket[0]].dtype: bucket for bucket in buckets}
    last |= dict.fromkeys(sorted(moved.keys() - last.keys(), key=str) or ([] if last else [torch.float32]), ())
    tails = {dtype: [moved.get(dtype, 0), 0, 0] for dtype in last}
    # A separate collective for the flags would cost as much as the gradients of a small model.
    tails[[*last][-1]][1:] = len(state.parameters), int(bool(state.counters))
    return tails, [*(bucket for bucket in buckets if bucket not in last.values()), *last.values()]


def by_type(parameters: Sequence[Tensor]) -> list[tuple[int, ...]]:
    """Return one bucket for each data type, sorted by the name of the type."""
    dtypes = sorted({parameter.dtype for parameter in parameters}, key=str)
    return [tuple(index for index, p in enumerate(parameters) if p.dtype == dtype) for dtype in dtypes]
