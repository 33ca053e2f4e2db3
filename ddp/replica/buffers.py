"""Buffers of ranks that train together: floating-point types move by the mean change, integer ones take the maximum.

Knows what changed on this rank, and not how ranks exchange it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ddp.replica.flat import FlatState, Section

SIGNED = {torch.bool: torch.uint8, torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""Types without a difference, and those of the same size that have one."""


def moves(section: Section) -> bool:
    """Return whether a section holds buffers that are averaged."""
    return section.kind == "buffers" and section.values.is_floating_point()


class BufferChanges:
    """Floating-point buffers, exchanged as differences to what they were after the last exchange: one that does not change
    keeps its bits. All of one data type go as one, to their place among what is exchanged."""

    def __init__(self, state: FlatState, places: Mapping[torch.dtype, Tensor]) -> None:
        self._state, self._places = state, places
        self._before = {values.dtype: values.clone() for values in self._values()}

    def _values(self) -> Iterator[Tensor]:
        """The buffers where they lie now: a state can be laid anew."""
        return (section.values for section in self._state.sections if moves(section))

    @property
    def _buffers(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        return [(values, self._places[values.dtype], self._before[values.dtype]) for values in self._values()]

    def undo(self) -> None:
        """Put buffers back to what they were when the step began."""
        for buffer, _, before in self._buffers:
            buffer.copy_(before)

    def rebase(self) -> None:
        """Count changes from here: buffers were replaced from outside."""
        for buffer, _, before in self._buffers:
            before.copy_(buffer)

    def lay(self, weight: float) -> None:
        """Put what changed in its place, weighed; nothing of a rank that weighs nothing, whatever a buffer holds."""
        for buffer, view, before in self._buffers:
            if not weight:
                view.zero_()
                continue
            torch.sub(buffer, before, out=view)
            view.masked_fill_(buffer == before, 0.0).mul_(weight)  # equal: also of infinities

    def take(self) -> None:
        """Move the buffers on by the averaged change."""
        for buffer, view, before in self._buffers:
            before.copy_(torch.where(view == 0, before, before + view))
            buffer.copy_(before)


class Counters:
    """Integer buffers, which take the maximum over ranks after every step.

    Most need no collective for that: they change alike on all ranks (batches counted) or never (tables). What all of them
    changed by when they were last brought together is the usual change. If every rank's is the usual one, all hold the same
    again; a rank whose own is not says so.
    """

    def __init__(self, state: FlatState) -> None:
        self._state = state
        self._before: list[Tensor] = []
        self._usual: list[Tensor] = []

    def begin(self) -> None:
        """Begin a step."""
        self._before = [counter.clone() for counter in self._state.counters]

    def undo(self) -> None:
        """Put them back to what they were then."""
        for counter, before in zip(self._state.counters, self._before, strict=True):
            counter.copy_(before)

    def _changes(self) -> list[Tensor]:
        pairs = zip(self._state.counters, self._before, strict=True)
        return [signed(counter) - signed(before) for counter, before in pairs]

    def unusual(self) -> Tensor:
        """Return a scalar on their device, above zero if the step changed one of them in another way than usual."""
        if not self._usual:
            return torch.ones(())
        differ = [(own != usual).any() for own, usual in zip(self._changes(), self._usual, strict=True)]
        return differ[0] if len(differ) == 1 else torch.stack(differ).any()

    def forget(self) -> None:
        """Forget the usual change: they were replaced from outside, maybe after a step that others have learned from."""
        self._usual = []

    def learn(self) -> None:
        """Take what they have changed by as the usual change: all ranks hold the same again."""
        self._usual = self._changes()


def signed(values: Tensor) -> Tensor:
    """Return the same memory as a type that has a difference; it wraps around, as that of unsigned numbers does."""
    return values.view(SIGNED[values.dtype]) if values.dtype in SIGNED else values
