"""Defines `EpochOrder`: the samples of each epoch, in order. It is the same on every rank; `ddp.core.grants.dispatch`
decides which part a rank trains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler

from ddp.data.seeded import Seeded
from ddp.permutation import derive, permutation

Sampler = Callable[[int], Iterable[int]] | Iterable[int]
"""A user's own order: a function of the epoch, or a PyTorch sampler (its `set_epoch` is called if it has one). All epochs
must have the same number of indices; an index may be repeated or missing. Every rank calls it, so it must depend on the
epoch alone; its draws from torch do."""

AT_ONCE, MOST = 1 << 14, 16
"""Maximum number of positions, and of epochs, whose order is computed in advance. For short epochs this saves time: right
after a training step, the first call is ten times slower than a second, because its code is not in the cache."""
_ASKING = RLock()
"""Held while a sampler is called."""


@contextmanager
def _seeded(own: object, epoch: int) -> Iterator[None]:
    """Seed a sampler's own generator from its initial seed and the epoch in this block, and restore it afterwards."""
    if not isinstance(own, torch.Generator):
        yield
        return
    before = own.get_state()
    own.manual_seed(derive(own.initial_seed(), "sampler", epoch))
    try:
        yield
    finally:
        own.set_state(before)


def _within(sampler: Any) -> Any:
    """Return the sampler inside of a BatchSampler; other samplers unchanged."""
    while isinstance(sampler, BatchSampler):
        sampler = sampler.sampler
    return sampler


def refuse_part(sampler: object) -> None:
    """Raise ValueError for a sampler that gives only one rank's samples: samples are divided over ranks here already."""
    sampler = _within(sampler)
    ranks = getattr(sampler, "num_replicas", getattr(sampler, "world_size", 1))
    if ranks > 1 and hasattr(sampler, "rank"):
        raise ValueError(
            f"{type(sampler).__name__} gives the samples of one of {ranks} ranks, and they are divided over ranks already; "
            "leave it out"
        )


def order(seed: int, epoch: int, samples: int) -> Tensor:
    """Return the order of the samples in epoch `epoch`: a permutation, int64, shape [samples], on the CPU."""
    return torch.from_numpy(permutation(seed, epoch, samples))


class EpochOrder:
    """The order of each epoch, by its number. `len`: number of samples in an epoch."""

    def __init__(
        self,
        seed: int,
        size: int,
        sampler: Sampler | None = None,
        whole: int = 1,
        shuffle: bool = True,
        length: int | None = None,
    ) -> None:
        """Order a data set of `size` samples. `whole`: cut each epoch to a multiple of this; `length`: number of positions
        in an epoch, filled by one order of the samples after the other (None: one order).

        Raise ValueError for a sampler that gives nothing, or another order when it is called again, or if an epoch would be
        empty."""
        self.seed = seed
        self._size, self._sampler, self._shuffle = size, sampler, shuffle
        self.shuffled = shuffle and sampler is None
        """Whether orders are permutations by the seed."""
        self._given, first = size, None
        if sampler is not None:
            first = self._sampled(0)
            if not torch.equal(first, self._sampled(0)):  # ranks would train some samples twice and skip others
                raise ValueError(
                    "the sampler gives another order when it is asked for epoch 0 again, so ranks would not agree; draw "
                    "from torch, or from a generator that is made from the epoch"
                )
            self._given = len(first)
        self._length = self._given - self._given % whole if length is None else length
        self.passes = max(-(-self._length // self._given), 1) if self._given else 1
        """Number of orders of the samples in an epoch; the last one may be cut."""
        if not self._length and (whole > 1 or length):
            raise ValueError(f"{self._given} samples make no batch of {whole}: nothing is left with drop_last")
        self._at_once = min(max(AT_ONCE // max(size, self._length, 1), 1), MOST) if sampler is None else 1
        self._kept: dict[int, Tensor] = {} if first is None or self.passes > 1 else {0: first[: self._length]}

    def __len__(self) -> int:
        return self._length

    def __call__(self, epoch: int) -> Tensor:
        """Return the indices of an epoch's samples in order, int64, shape [len], on the CPU.

        Raise ValueError for invalid indices of a sampler."""
        kept = self._kept
        if epoch not in kept:
            made = {number: self._make(number) for number in range(epoch, epoch + self._at_once)}
            # Keep the previous epoch: one epoch is read ahead while another is trained. Replace the dict: threads read it.
            kept = self._kept = {**dict(list(kept.items())[-1:]), **made}
        return kept[epoch]

    def _make(self, epoch: int) -> Tensor:
        orders = [self._one(epoch * self.passes + number) for number in range(self.passes)]
        return (orders[0] if self.passes == 1 else torch.cat(orders))[: self._length]

    def _one(self, number: int) -> Tensor:
        if self._sampler is not None:
            return self._sampled(number)
        return order(self.seed, number, self._size) if self._shuffle else torch.arange(self._size)

    def distinct(self, start: int, indices: Tensor) -> Tensor:
        """Return numbers that distinguish an epoch's repeated visits of a sample, for positions from `start` on: the
        indices themselves in the first order, larger numbers in later ones."""
        if self.passes == 1:
            return indices
        positions = torch.arange(start, start + len(indices), device=indices.device)
        return indices + positions // self._given * self._size

    def _sampled(self, epoch: int) -> Tensor:
        sampler, inner = self._sampler, _within(self._sampler)
        # A thread that reads ahead may request another epoch meanwhile, and `set_epoch` changes the sampler's state.
        with _ASKING, Seeded() as mode, _seeded(getattr(inner, "generator", None), epoch):
            mode.seed(derive(self.seed, "sampler", epoch))
            if hasattr(inner, "set_epoch"):
                inner.set_epoch(epoch)
            given = sampler(epoch) if callable(sampler) else sampler
            indices = given if isinstance(given, Tensor) else list(given) if isinstance(given, Iterable) else []
        refused = f"the sampler must give indices of {self._size} samples; for epoch {epoch} it does not"
        try:
            chosen = torch.as_tensor(indices).reshape(-1)
        except (TypeError, ValueError, RuntimeError) as error:  # strings, batches of unequal lengths, None
            raise ValueError(f"{refused} ({error})") from error
        wrong = chosen.is_floating_point() or chosen.is_complex() or chosen.dtype == torch.bool
        if not len(chosen):
            raise ValueError(f"{refused} (it gives none)")
        outside = () if wrong else chosen[(chosen < 0) | (chosen >= self._size)].tolist()
        if wrong or outside:
            what = f"{outside[0]} is outside 0 to {self._size - 1}" if outside else "they are no whole numbers"
            raise ValueError(f"{refused} ({what})")
        if epoch and len(chosen) != self._given:
            raise ValueError(
                f"the sampler gave {self._given} indices for epoch 0 and {len(chosen)} for epoch {epoch}; all epochs must "
                "have the same number"
            )
        return chosen.to(torch.int64)
