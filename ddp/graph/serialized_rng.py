"""Random numbers of replicas that share a generator: each draws alone, from a seed of its own.

Owns the generator during the passes of a step. Must not know models. On the CPU all threads draw from one generator. A model
that draws (dropout) runs its forward passes one at a time, each seeded: its numbers depend on the seed, not on the order of
threads. So do its backward passes, as a checkpoint in them draws once more. The first pass shows whether a model draws.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor


class SerializedRng:
    """The turns of all replicas of a model, in one mode (training or not)."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._own = any(device.type == "cuda" for device in devices)
        self._lock = threading.Lock()
        self._draws: bool | None = None
        """Whether the model draws; None: not known yet."""
        self._before: Tensor | None = None

    @property
    def taken(self) -> bool:
        """Return whether replicas wait for their turn."""
        return self._draws is not False

    @contextmanager
    def of(self, seed: Callable[[], int], device: torch.device) -> Iterator[None]:
        """Run the forward pass of one replica, with random numbers of `seed`."""
        if device.type == "cuda":  # a generator of its own
            generators: Any = torch.cuda.default_generators
            generators[device.index or 0].manual_seed(seed())
        if self._draws is False:
            yield
            return
        with self._lock:
            torch.default_generator.manual_seed(seed())
            if self._draws is None:
                before = torch.get_rng_state()
                yield
                self._draws = True if not torch.equal(before, torch.get_rng_state()) else None
            else:
                yield

    @contextmanager
    def back(self, device: torch.device) -> Iterator[None]:
        """Run the backward pass of one replica."""
        with self._lock if device.type == "cpu" and self.taken else nullcontext():
            yield

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Put the generator back after the backward passes of all replicas."""
        before = torch.get_rng_state()
        try:
            yield
        finally:
            torch.set_rng_state(before)

    def begin(self) -> int:
        """Begin the passes of a step; return the seed of theirs, drawn from the caller's generator if one is needed."""
        seed = int(torch.randint(1 << 62, ())) if self._own or self._draws is not False else 0
        self._before = torch.get_rng_state()
        return seed

    def end(self) -> None:
        """End them, on the thread that began: put the generator back, and learn whether the model draws."""
        assert self._before is not None
        if self._draws is False and not torch.equal(self._before, torch.get_rng_state()):
            self._draws = True
            warnings.warn(
                "the model began to draw random numbers after a first pass without; that step's are not reproducible, "
                "later ones are",
                stacklevel=2,
            )
        elif self._draws is None:
            self._draws = False
        self.restore()

    def restore(self) -> None:
        """Put the generator back, on the thread that began: all that is left of passes that failed."""
        assert self._before is not None
        torch.set_rng_state(self._before)
