"""What was written into a graph by others than its replicas. PyTorch counts the writes into a tensor."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn


class WriteTracker:
    """Watches `tensors` of `model`, which it does not hold: what waits for a backward pass holds this."""

    def __init__(self, model: nn.Module, tensors: Callable[[nn.Module], Iterable[Tensor]]) -> None:
        self._model, self._tensors = weakref.ref(model), tensors
        self.note()

    def note(self) -> None:
        """Everybody knows what they hold now."""
        self._known = self._now()

    @property
    def changed(self) -> bool:
        """Whether one was written or replaced since they were noted."""
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
        return [_mark(tensor) for tensor in self._tensors(model)] if model is not None else []


def _mark(tensor: Tensor) -> tuple[int, int]:
    """Where it lies, and how often it was written; the second is not counted in inference mode."""
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version
