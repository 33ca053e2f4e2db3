"""Keeps the buffers of the ranks equal: floating-point buffers move by the mean change, integer buffers take the maximum.

Tracks how buffers changed on this rank. Does not know how ranks exchange the changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from ddp.replica.memory.flat import FlatState, Section

SIGNED = {torch.bool: torch.uint8, torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""Types that torch cannot subtract -> a type of the same size that it can."""


def moves(section: Section) -> bool:
    """Return whether the buffers of a section are averaged."""
    return section.kind == "buffers" and section.values.is_floating_point()


def lengths(section: Section, model: nn.Module) -> Tensor:
    """Return the numbers of elements of the buffers of `model` in a section, in their order; padding counts to the one
    before it."""
    flat, size = section.values, section.values.numel()
    places = ((b.data_ptr() - flat.data_ptr()) // flat.element_size() for b in model.buffers() if b.numel())
    starts = sorted({0, size, *(place for place in places if 0 <= place < size)})
    return torch.tensor(starts).diff()


def falls_below_zero(own: Tensor, excess: Tensor, mean: Tensor, lengths: Tensor) -> bool:
    """Return whether own - excess has a negative value in a buffer that has none in `own` and in `mean`. `lengths`: of the
    buffers in these flat tensors."""
    before, after = (
        torch.segment_reduce(values, "min", lengths=lengths) for values in (torch.minimum(own, mean), own - excess)
    )
    return bool(((before >= 0) & (after < 0)).any())


class BufferChanges:
    """Floating-point buffers, exchanged as their change since the last exchange, so that an unchanged buffer keeps its
    bits. From a value that is not finite no change can be measured: it counts as a change from zero.

    `places`: for each data type, the view into the exchanged tensor that all its buffers are written to."""

    def __init__(self, state: FlatState, places: Mapping[torch.dtype, Tensor]) -> None:
        self._state, self._places = state, places
        self._before = {values.dtype: values.clone() for values in self._values()}
        self._base = {dtype: finite_part(before) for dtype, before in self._before.items()}

    def _values(self) -> Iterator[Tensor]:
        """Yield the buffers from the current sections: `FlatState.lay` may have moved them to other memory."""
        return (section.values for section in self._state.sections if moves(section))

    @property
    def _buffers(self) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
        types = ((values, values.dtype) for values in self._values())
        return [(values, self._places[kind], self._before[kind], self._base[kind]) for values, kind in types]

    def begin(self) -> None:
        """Remember the values at the beginning of a step."""
        for buffer, _, before, _ in self._buffers:
            before.copy_(buffer)

    def undo(self) -> None:
        """Restore the values of the beginning of the step; before the first one, of the last exchange."""
        for buffer, _, before, _ in self._buffers:
            buffer.copy_(before)

    @property
    def bases(self) -> list[Tensor]:
        """Return the values that changes are measured from, by section. They are equal on all ranks."""
        return [base for _, _, _, base in self._buffers]

    def rebase(self, bases: Sequence[Tensor] = ()) -> None:
        """Measure changes from the current values, as the buffers were replaced from outside; or from another rank's
        `bases`, if they are that rank's buffers and may have changed since its last exchange."""
        for number, (buffer, _, before, base) in enumerate(self._buffers):
            finite_part(before.copy_(buffer), base)
            if bases:
                base.copy_(bases[number])

    def lay(self, weight: float) -> None:
        """Write the change of each buffer times `weight` to its place. With weight 0 write zeros, even where a buffer is
        NaN."""
        for buffer, view, _, base in self._buffers:
            if not weight:
                view.zero_()
                continue
            torch.sub(buffer, base, out=view)
            view.mul_(weight)

    def take(self) -> None:
        """Apply the averaged changes to the buffers."""
        for buffer, view, before, base in self._buffers:
            before.copy_(torch.where(view == 0, base, base + view))
            finite_part(buffer.copy_(before), base)


class Counters:
    """Integer buffers, which take the maximum over ranks after every step.

    Most steps need no collective for that: most integer buffers change alike on all ranks (batches counted) or never
    (tables). The "usual" change is how each one changed in the step in which ranks last took the maximum. While every rank
    sees its usual change, all ranks hold equal values; a rank with another change says so (`unusual`)."""

    def __init__(self, state: FlatState) -> None:
        self._state = state
        self._before: list[Tensor] = []
        self._usual: list[Tensor] = []

    def begin(self) -> None:
        """Remember the values at the beginning of a step."""
        self._before = [counter.clone() for counter in self._state.counters]

    def undo(self) -> None:
        """Restore the values of the beginning of the step."""
        for counter, before in zip(self._state.counters, self._before, strict=True):
            counter.copy_(before)

    def _changes(self) -> list[Tensor]:
        pairs = zip(self._state.counters, self._before, strict=True)
        return [signed(counter) - signed(before) for counter, before in pairs]

    def unusual(self) -> Tensor:
        """Return a scalar tensor above zero if any counter changed differently from its usual change in this step."""
        if not self._usual:
            return torch.ones(())
        differ = [(own != usual).any() for own, usual in zip(self._changes(), self._usual, strict=True)]
        return differ[0] if len(differ) == 1 else torch.stack(differ).any()

    def forget(self) -> None:
        """Forget the usual change: counters were replaced from outside, so other ranks may have learned another one."""
        self._usual = []

    def learn(self) -> None:
        """Remember this step's change as the usual one. To be called when all ranks hold the same values again."""
        self._usual = self._changes()


def finite_part(values: Tensor, out: Tensor | None = None) -> Tensor:
    """Return `values` with zeros for those that are not finite."""
    return torch.nan_to_num(values, 0.0, 0.0, 0.0, out=out)


def signed(values: Tensor) -> Tensor:
    """Return a view of the same memory in a type that can be subtracted; the difference wraps around."""
    return values.view(SIGNED[values.dtype]) if values.dtype in SIGNED else values
