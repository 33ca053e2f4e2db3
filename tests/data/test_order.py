"""Seeds and orders: permutations, the same for ever, unrelated for other keys."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddp.data import derive, order
from ddp.data.epoch_order import EpochOrder
from ddp.permutation import visited
from tests.threads import in_threads

SEEDS = st.integers(0, 2**64 - 1)


@given(SEEDS, st.integers(0, 10_000), st.integers(0, 300))
def test_an_order_is_a_permutation(seed: int, epoch: int, samples: int) -> None:
    found = order(seed, epoch, samples)
    assert found.dtype == torch.int64
    assert sorted(found.tolist()) == list(range(samples))
    assert torch.equal(found, order(seed, epoch, samples))


def test_golden_values() -> None:
    """If these change, no recorded run can be compared with a new one."""
    assert order(42, 0, 10).tolist() == [4, 5, 1, 7, 2, 3, 8, 6, 9, 0]
    assert order(42, 1, 10).tolist() == [1, 3, 5, 8, 0, 7, 9, 6, 4, 2]
    assert int((order(7, 3, 100_000) * torch.arange(100_000)).sum() % 1_000_003) == 772_301
    assert derive(42, "model") == 7125955744497907376
    assert derive(42) == 4938103814421361344


@given(st.integers(0, 40), st.lists(st.integers(0, 50), min_size=1, max_size=12), st.booleans())
def test_visits_are_the_orders_whichever_epochs_were_asked_for_before(
    size: int, epochs: list[int], shuffle: bool
) -> None:
    visits = EpochOrder(7, size, shuffle=shuffle)
    for epoch in epochs:
        assert torch.equal(visits(epoch), order(7, epoch, size) if shuffle else torch.arange(size))


@given(st.integers(1, 20), st.integers(1, 70), st.integers(0, 3), st.integers(0, 60))
def test_epochs_of_another_length(size: int, length: int, epoch: int, start: int) -> None:
    """The beginning of an order, or several; no sample has one stream twice."""
    visits = EpochOrder(7, size, length=length)
    assert len(visits) == length
    assert visits(epoch).tolist() == visited(7, epoch, size, length).tolist()
    whole = visits(epoch)[: length // size * size].view(-1, size)
    assert all(sorted(part.tolist()) == list(range(size)) for part in whole)
    numbers = visits.distinct(start % length, visits(epoch)[start % length :])
    assert len(set(numbers.tolist())) == len(numbers)
    assert (numbers % size).tolist() == visits(epoch)[start % length :].tolist()


def test_equal_draws_keep_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    class Few:
        def __init__(self, _: object) -> None: ...

        def random_raw(self, size: int) -> np.ndarray:
            return np.arange(size, dtype=np.uint64)[::-1] // 100

    monkeypatch.setattr(sys.modules[derive.__module__], "PCG64", Few)
    assert order(0, 0, 400).tolist() == [k for first in (300, 200, 100, 0) for k in range(first, first + 100)]


def test_other_epochs_and_seeds_give_other_orders() -> None:
    orders = {tuple(order(seed, epoch, 50).tolist()) for seed in range(20) for epoch in range(20)}
    assert len(orders) == 400


def test_every_sample_comes_first_about_equally_often() -> None:
    firsts = torch.stack([order(seed, 0, 5) for seed in range(2000)])[:, 0].bincount()
    assert firsts.min() > 320
    assert firsts.max() < 480


def test_keys_that_look_alike_give_unrelated_seeds() -> None:
    keys = [
        (),
        (0,),
        (0, 0),
        (1,),
        (1, 0),
        (0, 1),
        (2**32,),
        (2**32 + 1,),
        (1, 1),
        ("0",),
        ("",),
        ("model",),
        ("model", 0),
    ]
    seeds = [derive(seed, *key) for seed in (0, 1, 2**32) for key in keys]
    assert len(set(seeds)) == len(seeds)


@given(SEEDS, st.lists(st.integers(0, 2**64 - 1) | st.text(), max_size=3))
def test_a_derived_seed_suits_torch(seed: int, keys: list[int | str]) -> None:
    found = derive(seed, *keys)
    assert 0 <= found < 2**63
    torch.Generator().manual_seed(found)


def test_bad_numbers_are_refused() -> None:
    for bad in (-1, 2**64):
        with pytest.raises(ValueError, match=r"must be in \[0, 2\*\*64\)"):
            derive(bad)
        with pytest.raises(ValueError, match=r"must be in \[0, 2\*\*64\)"):
            order(0, bad, 10)
    with pytest.raises(ValueError, match="-1 samples"):
        order(0, 0, -1)


def test_two_threads_that_ask_a_sampler_for_two_epochs_get_each_its_own() -> None:
    class Slow:
        """Goes on from the epoch that it was told, and is overtaken."""

        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch
            time.sleep(0.05)

        def __iter__(self) -> Iterator[int]:
            return iter([self.epoch % 7] * 7)

    made = EpochOrder(0, 7, Slow())  # type: ignore[arg-type]
    orders = in_threads(2, lambda number: made(number + 1))
    assert [order.tolist() for order in orders] == [[1] * 7, [2] * 7]
