"""Makes a task or its data once for several replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from ddp.engine.cooperative_thread import generators

T = TypeVar("T")


class Once(Generic[T]):
    """Calls a function once and returns the same to all, who find the random generators as after that call."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: tuple[T, Callable[[], None]] | None = None

    def __call__(self) -> T:
        """Return what the function returned."""
        if self._made is None:
            self._made = self._make(), generators()
        made, leave = self._made
        leave()
        return made
