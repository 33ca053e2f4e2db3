"""Going on with other data than a run was begun with, of the same number of samples: refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ddp import Draws
from tests.api.conftest import Make, right
from tests.api.trained import WORLDS
from tests.runtime import toy
from tests.slow import slow

pytestmark = pytest.mark.usefixtures("in_process")

INPUTS, LABELS = toy.data()


class Points(Dataset[tuple[Tensor, int]]):
    """One by one, shifted; `noise` draws from torch, `wild` from NumPy."""

    def __init__(self, shift: float = 0.0, noise: float = 0.0, wild: float = 0.0) -> None:
        self.shift, self.noise, self.wild = shift, noise, wild

    def __len__(self) -> int:
        return len(INPUTS)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        moved = INPUTS[index] + self.shift + self.noise * torch.rand(6) + self.wild * float(np.random.rand())
        return moved, int(LABELS[index])


def other_labels() -> tuple[Tensor, Tensor]:
    changed = LABELS.clone()
    changed[77] = 1 - changed[77]
    return INPUTS, changed


def jitter(size: float) -> Any:
    def augment(batch: Any, draws: Draws) -> Any:
        return (batch[0] + size * draws.uniform(6), batch[1])

    return augment


OTHERS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"dataset": other_labels()}, "other training data: its samples differ"),
    ({}, {"dataset": (INPUTS.flip(0), LABELS)}, "other training data: its samples differ"),
    ({}, {"dataset": (INPUTS * 1.001, LABELS)}, "other training data: its samples differ"),
    ({}, {"eval_dataset": other_labels()}, "other evaluation data: its samples differ"),
    ({}, {"augment": jitter(0.1)}, "other training data: its batches"),
    ({"augment": jitter(0.1)}, {"augment": jitter(0.2)}, "other training data: its batches"),
    ({}, {"sampler": lambda epoch: torch.arange(203)}, "other training data: its order of samples differ"),
    ({"dataset": Points()}, {"dataset": Points(shift=0.5)}, "other training data: its batches"),
    ({"dataset": Points(noise=0.1)}, {"dataset": Points(noise=0.2)}, "other training data: its batches"),
    ({"eval_dataset": Points()}, {"eval_dataset": Points(shift=0.5)}, "other evaluation data: its batches"),
]
NAMES = ["label", "order", "scale", "eval", "augmented", "augment", "sampler", "map", "drawn", "eval-map"]


@pytest.mark.parametrize("world_size", [1, *slow(2)])
@pytest.mark.parametrize(("begun", "change", "said"), OTHERS, ids=NAMES)
def test_other_data_of_the_same_length_are_refused(
    make: Make, tmp_path: Path, world_size: int, begun: dict[str, Any], change: dict[str, Any], said: str
) -> None:
    same: dict[str, Any] = {"world_size": world_size, "eval_step": right, "eval_dataset": toy.data(), **begun}
    make(**same, checkpoint_folder=tmp_path).run().join()
    with pytest.raises(
        ValueError, match=f"{said}.*; go on with the data that it was begun with, or begin anew"
    ) as caught:
        make(**same | change, resume=tmp_path).run().join()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("length", [{"drop_last": True}, {"steps": 30}])
def test_an_epoch_of_whole_batches_needs_the_same_ones_of_another_number_of_ranks(
    make: Make, tmp_path: Path, length: dict[str, Any]
) -> None:
    """All ranks were started, and nothing said what to do."""
    same: dict[str, Any] = {"policy": "cadence", "backend": "nccl", "epochs": 3, **length}
    make(**same, batch_size=10, world_size=3, checkpoint_folder=tmp_path).run().join()
    with pytest.raises(ValueError, match="now; keep batch_size x world_size at 30"):
        make(**same, batch_size=10, resume=tmp_path)
    make(**same, batch_size=15, resume=tmp_path).run().join()


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize(
    ("begun", "again"),
    [
        ({}, {}),
        ({}, {"dataset": (INPUTS * (1 + 1e-8), LABELS.clone())}),
        ({"augment": jitter(0.1)}, {"augment": jitter(0.1)}),
        ({"dataset": Points(noise=0.1)}, {"dataset": Points(noise=0.1)}),
        ({"dataset": Points()}, {}),
        ({"eval_step": right, "eval_dataset": Points()}, {"eval_step": right, "eval_dataset": Points()}),
    ],
    ids=["same", "rounded", "augment", "drawn", "one-by-one", "eval-map"],
)
def test_the_same_data_are_taken_without_a_word(
    make: Make, tmp_path: Path, world_size: int, begun: dict[str, Any], again: dict[str, Any]
) -> None:
    make(world_size=world_size, **begun, checkpoint_folder=tmp_path).run().join()
    make(world_size=world_size, **again, resume=tmp_path).run().join()  # a warning would be an error


@pytest.mark.parametrize("world_size", WORLDS)
def test_data_that_are_never_twice_the_same_are_taken_and_it_is_said(
    make: Make, tmp_path: Path, world_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: set[str] = set()
    monkeypatch.setattr("ddp.trainer.handle.warnings.warn", lambda text, *more, **named: said.add(text))
    wild: dict[str, Any] = {"world_size": world_size, "dataset": Points(wild=0.1)}
    make(**wild, checkpoint_folder=tmp_path).run().join()
    assert not said
    make(**wild, resume=tmp_path).run().join()
    assert said == {
        "the training data gives other samples each time it is read, so whether it is the one of before could not be checked"
    }
