"""Random numbers for replicas that share a generator: they draw one at a time, each from its own seed.

Owns the generator during the passes of a step. Must not know models. On the CPU, all threads draw from one generator. If a
model draws random numbers (dropout), its replicas run their forward passes one at a time, each with a seed, so the numbers
do not depend on the order of threads. Their backward passes run one at a time too, because activation checkpointing draws
again. The first pass shows whether a model draws.
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
    """Serialises the passes of a model's replicas in one mode (training or evaluation), if the model draws random
    numbers."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._own = any(device.type == "cuda" for device in devices)
        self._lock = threading.Lock()
        self._draws: bool | None = None
        """Whether the model draws random numbers; None: not known yet."""
        self._before: Tensor | None = None

    @property
    def taken(self) -> bool:
        """Return whether replicas must run one at a time."""
        return self._draws is not False

    @contextmanager
    def of(self, seed: Callable[[], int], device: torch.device) -> Iterator[None]:
        """Run one replica's forward pass in this block, with random numbers from `seed`."""
        if device.type == "cuda":  # every GPU has its own generator
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
        """Run one replica's backward pass in this block."""
        with self._lock if device.type == "cpu" and self.taken else nullcontext():
            yield

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Restore the default generator after the block, which runs the backward passes of all replicas."""
        before = torch.get_rng_state()
        try:
            yield
        finally:
            torch.set_rng_state(before)

    def begin(self) -> int:
        """Begin the passes of a step. Return a seed for them, drawn from the caller's generator if the model may draw."""
        seed = int(torch.randint(1 << 62, ())) if self._own or self._draws is not False else 0
        self._before = torch.get_rng_state()
        return seed

    def end(self) -> None:
        """End the passes of a step, on the thread that began them: restore the generator, and note whether the model
        drew."""
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
        """Restore the generator, on the thread that began the passes. Enough for passes that failed."""
        assert self._before is not None
        torch.set_rng_state(self._before)
