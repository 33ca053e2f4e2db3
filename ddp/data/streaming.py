"""Defines `Streaming`: a thread reads the granted batches before the steps that train them.

The thread takes its work from a shelf, which its owner fills with granted batches. The thread refers to the shelf and not
to the owner, so it ends when the owner is garbage-collected. Only finished batches pass from the thread to the owner. After
a fork there is a new shelf.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from ddp.core.samples.spans import Batch
from ddp.data.errors import LateBatch, some
from ddp.data.gather import Gather, Staged, kept, same
from ddp.data.memory_budget import size

NAME = "ddp-data"
"""Name of the thread."""
LOOK_S = 1.0
"""Seconds after which an idle thread looks at the shelf again."""
END_S = 5.0
"""Seconds to wait for the thread to end; a data set may be in the middle of a sample. Not waited for after LateBatch,
because the rank would be taken for lost before it can report that error."""


class _Slot:
    """One batch on the shelf."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.begun = self.done = False
        self.value: Any = None
        self.error: BaseException | None = None


class _Shelf:
    """Batches to be read ahead, in the order in which they will be requested. Every access holds one lock."""

    def __init__(self, depth: int) -> None:
        self.changed = threading.Condition()
        self.slots: deque[_Slot] = deque()
        self.granted: Iterator[Batch] = iter(())
        self.depth = depth
        self.idle = self.stopped = self.late = False
        self.pid = os.getpid()

    def next(self) -> _Slot | None:
        """Return the slot to read next; None if there is nothing to read."""
        for slot in self.slots:
            if not slot.begun:
                return slot
        if len(self.slots) < self.depth and (batch := next(self.granted, None)) is not None:
            self.slots.append(_Slot(batch))
            return self.slots[-1]
        return None

    def expect(self, granted: Iterable[Batch]) -> None:
        """Keep the slots that match the beginning of `granted`, and drop the others, which were revoked."""
        self.granted, still = kept(((slot.batch, slot) for slot in self.slots), granted)
        self.slots = deque(slot for _, slot in still)

    def find(self, batch: Batch) -> _Slot:
        """Return the slot of the requested batch, which becomes the first on the shelf."""
        if any(same(slot.batch, batch) for slot in self.slots):  # usually the first slot
            while not same(self.slots[0].batch, batch):
                self.slots.popleft()
            return self.slots[0]
        if not self.slots and (coming := next(self.granted, None)) is not None and not same(coming, batch):
            self.granted = chain((coming,), self.granted)
        self.slots.appendleft(_Slot(batch))
        return self.slots[0]

    def stop(self) -> None:
        with self.changed:
            self.stopped = True
            self.slots.clear()
            self.granted = iter(())
            self.changed.notify_all()


def _work(shelf: _Shelf, read: Gather) -> None:
    """Read the batches on the shelf until it is stopped: the thread's function."""
    while True:
        with shelf.changed:
            while not shelf.stopped and (slot := shelf.next()) is None:
                shelf.idle = True
                shelf.changed.wait(LOOK_S)
            shelf.idle = False
            if shelf.stopped:
                return
            assert slot is not None
            slot.begun = True
        try:
            slot.value = read(slot.batch)
        except BaseException as error:  # any error is raised in the step that uses the batch
            slot.error = error
        with shelf.changed:
            slot.done = True
            if slot.error is not None:
                shelf.granted = iter(())
            if shelf.slots and shelf.slots[0] is slot:
                shelf.changed.notify_all()
        del slot


def _end(shelf: _Shelf, thread: threading.Thread) -> None:
    if shelf.pid != os.getpid():  # the thread exists only in the process that this one was forked from
        return
    shelf.stop()
    if thread is not threading.current_thread():  # the finalizer may run in the thread itself
        thread.join(0.0 if shelf.late else END_S)


class Streaming:
    """Batches that a thread reads ahead."""

    kind = "streaming"

    def __init__(self, read: Gather, depth: Callable[[int], int], deadline_s: float) -> None:
        """Read with `read`. `depth`: bytes of a batch (0: unknown) -> number of batches to read ahead; called in every
        epoch."""
        self.gather, self._measure, self._deadline_s = read, depth, deadline_s
        self.depth = depth(0)
        """Number of batches that are read ahead."""
        self._bytes = 0
        self._epoch: int | None = None
        self._shelf: _Shelf | None = None
        self._finalizer: Any = None

    def expect(self, granted: Iterable[Batch]) -> None:
        """Replace the list of coming batches by `granted`, in this order. The thread consumes the iterator as it reads."""
        coming = iter(granted)
        if self._shelf is None:  # do not start a thread for an iterator that is closed after the end, or at exit
            if (first := next(coming, None)) is None:
                return
            coming = chain((first,), coming)
        shelf = self._open()
        with shelf.changed:
            shelf.expect(coming)
            shelf.changed.notify_all()

    def get(self, batch: Batch) -> Any:
        """Return the samples of a non-empty batch, augmented, on the device.

        Raise the errors of the data set and of the augmentation, and LateBatch after the deadline."""
        shelf = self._open()
        if batch.epoch != self._epoch:
            self._epoch, self.depth = batch.epoch, self._measure(self._bytes)
            shelf.depth = self.depth
        with shelf.changed:
            slot = shelf.find(batch)
            if not slot.done:
                shelf.changed.notify_all()
                shelf.late = not shelf.changed.wait_for(lambda: slot.done, self._deadline_s)
                if shelf.late:
                    late = f"samples {some(self.gather.indices(batch).tolist())} were not there within"
                    raise LateBatch(f"{late} {self._deadline_s:g} s: the data set still reads")
            shelf.slots.popleft()
            # Not for each batch: waking a thread takes too long for a small step.
            if shelf.idle and 2 * len(shelf.slots) <= shelf.depth:
                shelf.changed.notify_all()
        if slot.error is not None:
            raise slot.error
        value = slot.value.take() if isinstance(slot.value, Staged) else slot.value
        if not self._bytes:
            self._bytes = size(value)
        return value

    def visited(self) -> int:
        """Return the tally (`ddp.tally`) of all samples read so far, including those read ahead."""
        return self.gather.visited()

    def close(self) -> None:
        """End the thread; the next `get` starts a new one. A thread whose data set does not return is abandoned after
        `END_S` seconds, or at once after LateBatch."""
        if self._finalizer is not None:
            self._finalizer()
        self._shelf = self._finalizer = None

    def _open(self) -> _Shelf:
        if self._shelf is None or self._shelf.pid != os.getpid():
            shelf = self._shelf = _Shelf(self.depth)
            thread = threading.Thread(target=_work, args=(shelf, self.gather), name=NAME, daemon=True)
            thread.start()
            self._finalizer = weakref.finalize(self, _end, shelf, thread)
        return self._shelf
