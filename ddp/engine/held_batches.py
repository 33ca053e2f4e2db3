"""Holds back the batches of epochs that have not begun: their callback may change the data and `augment`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from ddp.core.samples.spans import Batch


class HeldBatches:
    """The batches that come next. One iterator at a time may consume them."""

    def __init__(self, coming: Iterable[Batch] = ()) -> None:
        self._coming: Iterator[Batch] = iter(coming)

    def until(self, last: int) -> Iterator[Batch]:
        """Yield those before the first batch of an epoch after `last`; the others stay for the next call."""
        for batch in self._coming:
            if batch.epoch > last:
                self._coming = chain((batch,), self._coming)
                return
            yield batch
