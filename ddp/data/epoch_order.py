"""`EpochOrder`: which samples an epoch visits, in which order. The same on every rank; which part of it a rank trains is
granted by `ddp.core.dispatch`."""

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
"""A user's own order: a function of the epoch, or a sampler of PyTorch (`set_epoch` is called where it has one). Every epoch
as many indices; one may come several times, or not at all. Every rank calls it for itself, so it must be a function of the
epoch alone; what it draws from torch is."""

AT_ONCE, MOST = 1 << 14, 16
"""Positions whose order is made at once, and epochs: of several where they are short. The first call costs ten times a
second, as a training step leaves nothing of its code in the cache."""
_ASKING = RLock()
"""Held while a sampler is asked."""


@contextmanager
def _seeded(own: object, epoch: int) -> Iterator[None]:
    """Have a sampler's own generator draw from the seed that it was given and the epoch, and put it back."""
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
    """Return what gives the order: of PyTorch's batches, the sampler that they are cut from."""
    while isinstance(sampler, BatchSampler):
        sampler = sampler.sampler
    return sampler


def refuse_part(sampler: object) -> None:
    """Raise ValueError for a sampler that gives one rank's part of the samples: they are divided over ranks already."""
    sampler = _within(sampler)
    ranks = getattr(sampler, "num_replicas", getattr(sampler, "world_size", 1))
    if ranks > 1 and hasattr(sampler, "rank"):
        raise ValueError(
            f"{type(sampler).__name__} gives the samples of one of {ranks} ranks, and they are divided over ranks already; "
            "leave it out"
        )


def order(seed: int, epoch: int, samples: int) -> Tensor:
    """Return the order in which epoch `epoch` visits samples: a permutation, int64, shape [samples], on the CPU."""
    return torch.from_numpy(permutation(seed, epoch, samples))


class EpochOrder:
    """The order of each epoch, by its number. `len`: samples of an epoch."""

    def __init__(
        self,
        seed: int,
        size: int,
        sampler: Sampler | None = None,
        whole: int = 1,
        shuffle: bool = True,
        length: int | None = None,
    ) -> None:
        """Take `size` samples of a data set. `whole`: an epoch is cut at its end to a multiple of this; `length`: it has so
        many positions, in one order of the samples after the other; None: as many as one order.

        Raise ValueError for a sampler that gives nothing, or another order when it is asked again, or if nothing is left."""
        self.seed = seed
        self._size, self._sampler, self._shuffle = size, sampler, shuffle
        self.shuffled = shuffle and sampler is None
        """Whether orders are made by the seed."""
        self._given, first = size, None
        if sampler is not None:
            first = self._sampled(0)
            if not torch.equal(first, self._sampled(0)):  # ranks would train some samples twice and others not at all
                raise ValueError(
                    "the sampler gives another order when it is asked for epoch 0 again, so ranks would not agree; draw "
                    "from torch, or from a generator that is made from the epoch"
                )
            self._given = len(first)
        self._length = self._given - self._given % whole if length is None else length
        self.passes = max(-(-self._length // self._given), 1) if self._given else 1
        """Orders of the samples that an epoch has, the last one perhaps in part."""
        if not self._length and (whole > 1 or length):
            raise ValueError(f"{self._given} samples make no batch of {whole}: nothing is left with drop_last")
        self._at_once = min(max(AT_ONCE // max(size, self._length, 1), 1), MOST) if sampler is None else 1
        self._kept: dict[int, Tensor] = {} if first is None or self.passes > 1 else {0: first[: self._length]}

    def __len__(self) -> int:
        return self._length

    def __call__(self, epoch: int) -> Tensor:
        """Return the indices of the samples of an epoch in their order, int64, shape [len], on the CPU.

        Raise ValueError for what a sampler must not give."""
        kept = self._kept
        if epoch not in kept:
            made = {number: self._make(number) for number in range(epoch, epoch + self._at_once)}
            # One before too: an epoch is read ahead while another is trained. Another dictionary, as threads look into it.
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
        """Return numbers for the samples at positions from `start` on that tell an epoch's visits of one sample apart: their
        indices in its first order, others behind."""
        if self.passes == 1:
            return indices
        positions = torch.arange(start, start + len(indices), device=indices.device)
        return indices + positions // self._given * self._size

    def _sampled(self, epoch: int) -> Tensor:
        sampler, inner = self._sampler, _within(self._sampler)
        # Who reads ahead may ask for another epoch meanwhile, and a sampler keeps the one that it was told.
        with _ASKING, Seeded() as mode, _seeded(getattr(inner, "generator", None), epoch):
            mode.seed(derive(self.seed, "sampler", epoch))
            if hasattr(inner, "set_epoch"):
                inner.set_epoch(epoch)
            given = sampler(epoch) if callable(sampler) else sampler
            indices = given if isinstance(given, Tensor) else list(given) if isinstance(given, Iterable) else []
        refused = f"the sampler must give indices of {self._size} samples; for epoch {epoch} it does not"
        try:
            chosen = torch.as_tensor(indices).reshape(-1)
        except (TypeError, ValueError) as error:  # texts, batches of unequal lengths
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
