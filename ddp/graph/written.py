"""What was written into a graph's buffers by others than its replicas. PyTorch counts the writes into a tensor."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn


class Written:
    """Watches the buffers of `model`, which it does not hold: what waits for a backward pass holds this."""

    def __init__(self, model: nn.Module) -> None:
        self._model = weakref.ref(model)
        self.note()

    def note(self) -> None:
        """Everybody knows what the buffers hold now."""
        self._known = self._now()

    @property
    def changed(self) -> bool:
        """Whether a buffer was written or replaced since they were noted."""
        return self._known != self._now()

    @contextmanager
    def own(self) -> Iterator[None]:
        """What is written here is the replicas' own work."""
        before = self.changed
        try:
            yield
        finally:
            if not before:
                self.note()

    def _now(self) -> list[tuple[int, int]]:
        model = self._model()
        return [_mark(buffer) for buffer in model.buffers()] if model is not None else []


def _mark(buffer: Tensor) -> tuple[int, int]:
    """Where it lies, and how often it was written; the second is not counted in inference mode."""
    return buffer.data_ptr(), 0 if buffer.is_inference() else buffer._version
