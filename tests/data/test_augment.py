"""Augmentation and its random numbers: of a sample, whatever stands beside it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddp.data import Draws, crop_and_flip, derive, order
from ddp.data.augment import augmented

GAMMA = 0x9E3779B97F4A7C15


@st.composite
def _cuts(draw: st.DrawFn) -> tuple[int, list[int]]:
    size = draw(st.integers(1, 40))
    inner = draw(st.sets(st.integers(1, size - 1), max_size=6)) if size > 1 else set()
    return size, [0, *sorted(inner), size]


@given(_cuts(), st.integers(0, 2**63), st.integers(0, 1000))
def test_a_sample_gets_the_same_bits_whatever_the_batch(cuts: tuple[int, list[int]], seed: int, epoch: int) -> None:
    size, ends = cuts
    images = torch.rand(size, 2, 6, 5, generator=torch.Generator().manual_seed(size))
    labels = torch.arange(size)
    augment, permutation = crop_and_flip(2), order(seed, epoch, size)

    def of(indices: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found: tuple[torch.Tensor, ...] = augmented(
            augment, (images[indices], labels[indices]), lambda: Draws(seed, epoch, indices)
        )
        return found

    whole = of(torch.arange(size))
    parts = [of(permutation[a:b]) for a, b in pairwise(ends)]
    assert torch.equal(torch.cat([part[0] for part in parts]), whole[0][permutation])
    assert torch.equal(torch.cat([part[1] for part in parts]), permutation)


def test_golden_numbers() -> None:
    """If these change, no recorded run with augmentation can be compared with a new one."""
    draws = Draws(42, 3, torch.tensor([0, 1, 49_999]))
    assert draws.integers(-4, 5, 2).tolist() == [[-2, 1], [0, 4], [3, 2]]


@given(st.integers(0, 2**63), st.integers(0, 100), st.lists(st.integers(0, 2**40), min_size=1, max_size=5))
def test_numbers_are_those_of_the_hash_with_unsigned_integers(seed: int, epoch: int, indices: list[int]) -> None:
    def mix(bits: int) -> int:
        bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        bits = (bits ^ bits >> 27) * 0x94D049BB133111EB % 2**64
        return bits ^ bits >> 31

    keys = [mix((index * GAMMA + derive(seed, "sample", epoch)) % 2**64) for index in indices]
    numbers = [[mix((key + place * GAMMA) % 2**64) for place in (1, 2, 3)] for key in keys]
    draws = Draws(seed, epoch, torch.tensor(indices))
    assert draws.integers(-7, 1000, 2).tolist() == [[(n >> 32) * 1007 // 2**32 - 7 for n in row[:2]] for row in numbers]
    assert draws.uniform().tolist() == [(row[2] >> 40) / 2**24 for row in numbers]


def test_numbers_are_even_and_unrelated() -> None:
    size = 20_000
    draws = Draws(0, 0, torch.arange(size))
    dice = torch.bincount(draws.integers(0, 9, 5).flatten(), minlength=9)
    assert (dice - size * 5 / 9).abs().max() < 5 * (size * 5 / 9) ** 0.5
    uniform = draws.uniform(2)
    assert 0 <= float(uniform.min()) < 1e-3
    assert 1 - 1e-3 < float(uniform.max()) < 1
    # Of one sample and the next, of one draw and the next, of one epoch and the next.
    later = Draws(0, 1, torch.arange(size)).uniform(2)
    for one, other in ((uniform[:-1], uniform[1:]), (uniform[:, :1], uniform[:, 1:]), (uniform, later)):
        pair = torch.stack([one.flatten(), other.flatten()])
        assert abs(float(torch.corrcoef(pair)[0, 1])) < 5 * len(one) ** -0.5


def test_draws_go_on_where_the_last_ones_ended() -> None:
    indices = torch.tensor([5, 7])
    at_once, in_turn = Draws(1, 2, indices), Draws(1, 2, indices)
    parts = [in_turn.integers(0, 100, 2), in_turn.integers(0, 100), in_turn.integers(0, 100, 1, 3).flatten(1)]
    parts[1] = parts[1][:, None]
    assert torch.equal(at_once.integers(0, 100, 6), torch.cat(parts, 1))
    assert len(at_once) == 2
    assert Draws(1, 2, indices).uniform(2, 3, 4).shape == (2, 2, 3, 4)


def test_crops_are_shifted_images_and_half_of_them_mirrored() -> None:
    size, padding = 2_000, 2
    image = torch.arange(1.0, 26.0).view(1, 1, 5, 5)
    (found, rest) = crop_and_flip(padding)((image.expand(size, 1, 5, 5), "kept"), Draws(0, 0, torch.arange(size)))
    padded = torch.nn.functional.pad(image[0, 0], [padding] * 4)
    crops = [padded[y : y + 5, x : x + 5] for y in range(5) for x in range(5)]
    known = {tuple(c.flatten().tolist()) for crop in crops for c in (crop, crop.flip(1))}
    seen = [tuple(one.flatten().tolist()) for one in found]
    assert set(seen) == known
    straight = {tuple(c.flatten().tolist()) for c in crops}
    assert 0.45 < sum(one in straight for one in seen) / size < 0.55
    assert rest == "kept"
    assert torch.equal(crop_and_flip(0)(found[:0], Draws(0, 0, torch.arange(0))), found[:0])


def test_what_cannot_be_augmented_is_refused() -> None:
    draws = Draws(0, 0, torch.arange(3))
    with pytest.raises(ValueError, match="padding=-1"):
        crop_and_flip(-1)
    half: Any = 1.5
    with pytest.raises(ValueError, match=r"padding=1\.5"):
        crop_and_flip(half)
    with pytest.raises(ValueError, match=r"not for a tensor of shape \[3, 4\]"):
        crop_and_flip(1)((torch.zeros(3, 4), torch.zeros(3)), draws)
    with pytest.raises(ValueError, match="returned nothing"):
        augmented(lambda batch, draws: None, (torch.zeros(3),), lambda: draws)
    for drawn in (
        torch.randn_like,
        torch.nn.Dropout(),
        lambda one: one.uniform_(),
        lambda one: torch.distributions.Beta(one, one).sample(),
    ):
        with pytest.raises(ValueError, match=r"augment draws from torch \(\w+\)"):
            augmented(lambda batch, draws, drawn=drawn: (drawn(batch[0]),), (torch.ones(3),), lambda: draws)
    own = torch.Generator().manual_seed(3)
    assert augmented(lambda batch, draws: torch.rand(2, generator=own), (), lambda: draws).shape == (2,)
    for low, high in ((0, 0), (3, 1), (0, 2**31)):
        with pytest.raises(ValueError, match="no integer can be drawn"):
            draws.integers(low, high)


def test_bounds_in_place_of_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"0\.8 is no size"):
        Draws(0, 0, torch.arange(3)).uniform(0.8, 1.2)  # type: ignore[arg-type]
