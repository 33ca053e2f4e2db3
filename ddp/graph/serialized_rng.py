"""Random numbers of replicas that share a generator: whoever draws them does so alone, from a seed of its own.

On the CPU all threads draw from one generator. A model that draws (dropout) runs its forward passes in turns, each seeded,
so that its numbers depend on the seed and not on who came first, and its backward passes one at a time: a checkpoint in them
draws once more. A model that does not is found out in the first pass and takes no turns.
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
        """Whether replicas wait for their turn."""
        return self._draws is not False

    @contextmanager
    def of(self, seed: Callable[[], int], device: torch.device) -> Iterator[None]:
        """The forward pass of one replica, whose random numbers come from `seed`."""
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
        """The backward pass of one replica: a checkpoint in it draws once more what its forward pass has drawn."""
        with self._lock if device.type == "cpu" and self.taken else nullcontext():
            yield

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Puts the generator back to what it was, after the backward passes of all replicas."""
        before = torch.get_rng_state()
        try:
            yield
        finally:
            torch.set_rng_state(before)

    def begin(self) -> int:
        """Before the passes of a step; the seed to make theirs from, drawn from the caller's generator if it is needed."""
        seed = int(torch.randint(1 << 62, ())) if self._own or self._draws is not False else 0
        self._before = torch.get_rng_state()
        return seed

    def end(self) -> None:
        """After them, on the thread that began: the generator is put back; what was found out holds from now on."""
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
        """Put the generator back: of passes that did not come to their end this is all. On the thread that began."""
        assert self._before is not None
        torch.set_rng_state(self._before)
