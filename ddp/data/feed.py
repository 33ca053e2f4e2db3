"""`Feed`: the batches that a rank trains, asked for by position; all of the data on the device, or read ahead by a thread.

Which of the two changes no bit of a batch. Knows nothing of who grants positions, and why.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Protocol

import torch

from ddp.core.loading import Loading
from ddp.core.spans import Batch
from ddp.data.augment import Augment, augmented
from ddp.data.dataset import MapSource
from ddp.data.draws import Draws
from ddp.data.room import depth, room
from ddp.data.source import every, move
from ddp.data.streaming import Streaming
from ddp.data.visits import Visits


class Feed(Protocol):
    """What both kinds have. `close` ends what runs in the background; a feed that is asked again begins anew."""

    kind: str

    def expect(self, granted: Iterable[Batch]) -> None:
        """What will be asked for, in this order, in place of what was said before. A thread may consume it, bit by bit."""

    def get(self, batch: Batch) -> Any:
        """The samples at the positions of a batch that is not empty, augmented, on the device. Raises what the data set and
        the augmentation raise, DataError."""

    def close(self) -> None:
        """End; memory of the data is let go of with the feed."""


class Gather:
    """Reads batches: what they are is said here, for both kinds."""

    def __init__(
        self, source: Any, visits: Visits, augment: Augment | None, at: torch.device, to: torch.device
    ) -> None:
        """`source`: gives batches on `at`; they are augmented on `to`."""
        self._source, self._visits, self._augment = source, visits, augment
        self._at, self._to = at, to
        self._drawn = isinstance(source, MapSource)
        self._order: tuple[int, torch.Tensor] = (-1, torch.empty(0))
        self._stream = torch.cuda.Stream(to) if to != at and to.type == "cuda" else None  # type: ignore[no-untyped-call]

    def __call__(self, batch: Batch) -> Any:
        """The batch on `to`. Where that is another device, a `Staged` one."""
        indices = self.indices(batch)
        if self._stream is not None:
            return self._staged(batch, indices)
        return self._finished(batch, self._read(batch, indices), indices)

    def indices(self, batch: Batch) -> torch.Tensor:
        """Of its samples, on `at`."""
        held = self._order
        if held[0] != batch.epoch:
            held = self._order = (batch.epoch, self._visits(batch.epoch).to(self._at))
        return held[1][batch.start : batch.stop]

    def _read(self, batch: Batch, indices: torch.Tensor) -> Any:
        if self._drawn:
            return self._source.batch(indices, Draws(self._visits.seed, batch.epoch, indices))
        return self._source.batch(indices)

    def _finished(self, batch: Batch, read: Any, indices: torch.Tensor) -> Any:
        if self._to != self._at:
            read = move(read, self._to)
        # On the device where it is trained, so that arithmetic is the same from either kind.
        return augmented(
            self._augment, read, lambda: Draws(self._visits.seed, batch.epoch, indices.to(self._to, non_blocking=True))
        )

    def _staged(self, batch: Batch, indices: torch.Tensor) -> Staged:
        assert self._stream is not None
        read = every(lambda tensor: tensor.pin_memory(), self._read(batch, indices))
        with torch.cuda.device(self._to), torch.cuda.stream(self._stream):
            there = every(lambda tensor: tensor.to(self._to, non_blocking=True), read)
            done = self._finished(batch, there, indices)
            return Staged(done, self._stream.record_event())


class Staged:
    """A batch that comes to a GPU on a stream of its own."""

    def __init__(self, batch: Any, there: torch.cuda.Event) -> None:
        self._batch, self._there = batch, there

    def take(self) -> Any:
        """The batch, for the current stream."""
        stream = torch.cuda.current_stream()
        stream.wait_event(self._there)

        def hand_over(tensor: torch.Tensor) -> torch.Tensor:
            tensor.record_stream(stream)
            return tensor

        return every(hand_over, self._batch)


class Resident:
    """All of the data lies on the device."""

    kind = "resident"

    def __init__(self, gather: Gather) -> None:
        self.get = gather

    def expect(self, granted: Iterable[Batch]) -> None:
        """Nothing is read ahead."""

    def close(self) -> None:
        """Nothing runs."""


def feed(
    source: Any,
    visits: Visits,
    device: torch.device,
    loading: Loading,
    augment: Augment | None = None,
    deadline_s: float = 60.0,
) -> tuple[Feed, str]:
    """The feed of a rank on `device`, and what a reader of the results must know about it ("": nothing).

    `deadline_s`: how long a batch may take to be there. ValueError for data that cannot be as `loading` asks for.
    """
    size: int | None = getattr(source, "nbytes", None)
    if loading.kind == "resident" and size is None:
        raise ValueError(
            f"loader kind=resident, but {type(source).__name__} gives samples one by one, and may give others each time; "
            "give tensors, or leave it to kind=auto"
        )
    note = ""
    if size is not None and (loading.kind == "resident" or (loading.kind == "auto" and size <= room(loading, device))):
        try:
            return Resident(Gather(source.to(device), visits, augment, device, device)), note
        except (RuntimeError, MemoryError) as error:
            if not _out_of_memory(error):
                raise
        if device.type == "cuda":
            torch.cuda.empty_cache()
        note = f"no memory on {device} for {size / 1e6:,.0f} MB of data: it is streamed"
    host = torch.device("cpu")
    gather = Gather(source.to(host), visits, augment, host, device)
    return Streaming(gather, partial(depth, loading, device), deadline_s), note


def _out_of_memory(error: Exception) -> bool:
    # The allocator of the CPU has no exception of its own.
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "allocate memory" in str(error)
