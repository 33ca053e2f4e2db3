"""Whether two data sets of one length are told apart by what a checkpoint keeps of them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ddp.data import fingerprint as module
from ddp.data.dataset import as_source
from ddp.data.epoch_order import EpochOrder
from ddp.data.fingerprint import difference, fingerprint, unsure
from ddp.data.source import TensorSource


def drawn(*shape: int) -> Tensor:
    """Return the same numbers in [0, 1) each time: of two that are nearly equal an exchange is not seen."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1))


def told_apart(one: Any, other: Any) -> str:
    visits = EpochOrder(3, len(one))
    before = fingerprint(one, visits)
    return difference(before, fingerprint(other, visits, like=before))


@pytest.mark.parametrize(
    "values",
    [
        torch.arange(60_000).reshape(20_000, 3) % 251,
        (torch.arange(60_000).reshape(20_000, 3) % 251).to(torch.uint8),
        drawn(20_000, 3),
        drawn(20_000, 3).to(torch.bfloat16),
        drawn(20_000, 3).to(torch.complex64),
        drawn(20_000, 40) > 0.5,
    ],
    ids=lambda values: str(values.dtype),
)
@pytest.mark.parametrize("place", [0, 7_777, 19_999])
def test_one_sample_of_many_is_enough(values: Tensor, place: int) -> None:
    changed = values.clone()
    changed[place] = values[place] + 1 if values.dtype != torch.bool else ~values[place]
    assert not told_apart(TensorSource(values), TensorSource(values.clone()))
    assert told_apart(TensorSource(values), TensorSource(changed)) == "samples"
    swapped = values.clone()
    swapped[[place, 100]] = values[[100, place]]
    assert not torch.equal(swapped, values)
    assert told_apart(TensorSource(values), TensorSource(swapped)) == "samples"


def test_values_that_are_no_numbers_are_compared_too() -> None:
    values = torch.tensor([[1.0], [float("nan")], [float("inf")]])
    assert not told_apart(TensorSource(values), TensorSource(values.clone()))
    assert told_apart(TensorSource(values), TensorSource(torch.ones(3, 1)))


def test_of_large_tensors_as_much_is_looked_at_as_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WHOLE", 6_400)
    values = torch.zeros(6_400, 10, dtype=torch.uint8)
    looked_at = torch.cat(list(module._stretches(values)))
    assert looked_at.nbytes == 6_400
    noticed, visits = [], EpochOrder(3, len(values))
    before = fingerprint(TensorSource(values), visits)
    for place in range(0, 6_400, 10):
        changed = values.clone()
        changed[place : place + 10] = 1
        noticed.append(bool(difference(before, fingerprint(TensorSource(changed), visits, like=before))))
    assert noticed[0]
    assert noticed[-1]
    assert sum(noticed) >= module.PARTS


class Texts:
    def __init__(self, *texts: str) -> None:
        self.texts = texts

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"text": self.texts[index], "length": len(self.texts[index])}


def test_texts_and_mappings_are_compared() -> None:
    assert not told_apart(as_source(Texts("a", "bc")), as_source(Texts("a", "bc")))
    assert told_apart(as_source(Texts("a", "bc")), as_source(Texts("a", "bd")))


class Broken(Texts):
    def __getitem__(self, index: int) -> dict[str, Any]:
        raise OSError("no such file")


def test_a_sample_that_cannot_be_read_is_left_to_the_step_that_trains_it() -> None:
    assert unsure(fingerprint(as_source(Broken("a", "bc")), EpochOrder(3, 2)))


def test_random_generators_are_left_as_they_were() -> None:
    def state() -> list[Any]:
        return [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]

    before = state()
    fingerprint(as_source(Texts("a", "bc")), EpochOrder(3, 2))
    assert state() == before
