"""Detects changes of a graph that its replicas did not make: writes to its tensors, and new values of plain attributes.

Must not know what follows from a change. Uses PyTorch's version counters of tensors.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

PLAIN = (int, float, str, type(None))
OWN = frozenset(vars(nn.Module()))
"""Attributes of torch's modules themselves, such as `training`."""

Attributes = list[dict[str, Any]]


class WriteTracker:
    """Detects writes to `tensors(model)`. It holds the model by a weak reference, because a pending backward pass keeps the
    tracker alive."""

    def __init__(self, model: nn.Module, tensors: Callable[[nn.Module], Iterable[Tensor]]) -> None:
        self._model, self._tensors = weakref.ref(model), tensors
        self.note()

    def note(self) -> None:
        """Take the present versions as known."""
        self._known = self._now()

    @property
    def changed(self) -> bool:
        """Return whether a tensor was written or replaced since `note`."""
        return self._known != self._now()

    @contextmanager
    def own(self) -> Iterator[None]:
        """Ignore writes in this block: the replicas make them."""
        before = self.changed
        try:
            yield
        finally:
            if not before:
                self.note()

    def _now(self) -> list[tuple[int, int]]:
        """Return (address, version) of each tensor. Inference tensors have no version."""
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
    """Return the attributes of every module that are new or different."""
    return [
        {name: value for name, value in now.items() if name not in was or was[name] != value}
        for was, now in zip(before, after, strict=True)
    ]


def put(new: Attributes, model: nn.Module) -> None:
    """Set attributes on the modules of another model."""
    for own, module in zip(new, model.modules(), strict=True):
        vars(module).update(own)
