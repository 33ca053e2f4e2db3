"""What others than its replicas change in a graph: writes into its tensors, and plain attributes of its modules.

Owns how a change is noticed. Must not know what follows from one. PyTorch counts the writes into a tensor.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

PLAIN = (int, float, str, type(None))
OWN = frozenset(vars(nn.Module()))
"""PyTorch's own, modes among them."""

Attributes = list[dict[str, Any]]


class WriteTracker:
    """Watches `tensors` of `model`, without holding the model: what waits for a backward pass holds this."""

    def __init__(self, model: nn.Module, tensors: Callable[[nn.Module], Iterable[Tensor]]) -> None:
        self._model, self._tensors = weakref.ref(model), tensors
        self.note()

    def note(self) -> None:
        """Take the present values for known."""
        self._known = self._now()

    @property
    def changed(self) -> bool:
        """Return whether one was written or replaced since `note`."""
        return self._known != self._now()

    @contextmanager
    def own(self) -> Iterator[None]:
        """Take what is written within for the replicas' own work."""
        before = self.changed
        try:
            yield
        finally:
            if not before:
                self.note()

    def _now(self) -> list[tuple[int, int]]:
        """Return where each lies and how often it was written, which is not counted in inference mode."""
        model = self._model()
        tensors = self._tensors(model) if model is not None else ()
        return [(each.data_ptr(), 0 if each.is_inference() else each._version) for each in tensors]


def attributes(model: nn.Module) -> Attributes:
    """Return the plain attributes (a rate, a switch) of every module, by name."""
    return [
        {name: value for name, value in vars(module).items() if isinstance(value, PLAIN) and name not in OWN}
        for module in model.modules()
    ]


def changes(before: Attributes, after: Attributes) -> Attributes:
    """Return what is new or different, of every module."""
    return [
        {name: value for name, value in now.items() if name not in was or was[name] != value}
        for was, now in zip(before, after, strict=True)
    ]


def put(new: Attributes, model: nn.Module) -> None:
    """Set attributes on the modules of another model."""
    for own, module in zip(new, model.modules(), strict=True):
        vars(module).update(own)
