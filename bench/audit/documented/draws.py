"""Repeats the random draws of users' own code by the documented rules: samplers, data sets and augmentation. Must not
use the engine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import BatchSampler, Subset

from bench.audit.documented.seeds import numbers_of, seed_of
from ddp.data.dataset import MapSource, Rows


class SampleDraws:
    """The random streams of some samples, by their keys, as `augment` receives them."""

    def __init__(self, keys: NDArray[np.uint64]) -> None:
        self.keys, self._own, self._taken = torch.from_numpy(keys.view(np.int64)), keys, 0

    def __len__(self) -> int:
        return len(self.keys)

    def uniform(self, *shape: int) -> Tensor:
        """Draw float32 numbers from [0, 1), multiples of 2**-24."""
        return torch.from_numpy((self._next(shape) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24))

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Draw int64 numbers from [low, high)."""
        drawn = (self._next(shape) >> np.uint64(32)) * np.uint64(high - low) >> np.uint64(32)
        return torch.from_numpy(drawn.astype(np.int64)) + low

    def _next(self, shape: tuple[int, ...]) -> NDArray[np.uint64]:
        first, self._taken = self._taken + 1, self._taken + math.prod(shape)
        return numbers_of(self._own, range(first, self._taken + 1)).reshape(len(self._own), *shape)


def sampled(sampler: Any, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return a user's sampler's indices for an epoch. Draws from torch, or from a generator that the sampler was given,
    use the epoch's seed."""
    inner = sampler
    while isinstance(inner, BatchSampler):
        inner = inner.sampler
    own = getattr(inner, "generator", None)
    with _drawing(torch.default_generator), _drawing(own):
        torch.default_generator.manual_seed(seed_of(seed, "sampler", epoch))
        if isinstance(own, torch.Generator):
            own.manual_seed(seed_of(own.initial_seed(), "sampler", epoch))
        if hasattr(inner, "set_epoch"):
            inner.set_epoch(epoch)
        given = sampler(epoch) if callable(sampler) else sampler
        indices = torch.as_tensor(given if isinstance(given, Tensor) else list(given))
    return indices.reshape(-1).to(torch.int64).numpy()


def read(source: MapSource, indices: NDArray[np.int64], keys: NDArray[np.uint64]) -> Any:
    """Return a batch of a map-style data set. A sample's draws from torch use the sample's own key; if the data set
    returns several samples at once, the key of the first."""
    inner, dataset, wanted, seeds = source.dataset, source.dataset, indices.tolist(), keys.view(np.int64).tolist()
    while type(inner) is Subset:
        inner = inner.dataset
    at_once = wanted and hasattr(dataset, "__getitems__") and hasattr(inner, "__getitems__")
    with _drawing(torch.default_generator):
        torch.default_generator.manual_seed(seeds[0] if wanted else 0)
        return source.collate(
            dataset.__getitems__(wanted) if at_once else list(map(partial(_one, dataset), wanted, seeds))
        )


def read_rows(source: Rows, indices: NDArray[np.int64], keys: NDArray[np.uint64]) -> Any:
    """Return a batch of rows of tensors; what `collate` draws from torch uses the key of the last sample."""
    with _drawing(torch.default_generator):
        torch.default_generator.manual_seed(int(keys.view(np.int64)[-1]) if len(keys) else 0)
        return source.batch(torch.from_numpy(indices))


def _one(dataset: Any, index: int, seed: int) -> Any:
    torch.default_generator.manual_seed(seed)
    return dataset[index]


@contextmanager
def _drawing(generator: Any) -> Iterator[None]:
    """Restore a generator's state on exit."""
    state = generator.get_state() if isinstance(generator, torch.Generator) else None
    try:
        yield
    finally:
        if state is not None:
            generator.set_state(state)
