"""What a user's own code draws and schedules in a run is done again: samplers, data sets, augmentation, rates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.utils.data import BatchSampler, Dataset, RandomSampler, Subset, WeightedRandomSampler, default_collate

from ddp import LRSchedule
from ddp.data import as_source
from ddp.data.dataset import MapSource, collated
from ddp.data.draws import Draws
from ddp.data.epoch_order import EpochOrder
from ddp.data.source import TensorSource
from ddp.replica.optim.learning_rates import Rates
from ddp.replica.task import Task
from tests.bench.audit.audit_breaks import Break, wrapped
from tests.bench.audit.audited import audited, different, train_alone
from tests.runtime import toy
from tests.runtime.averaging import test_sparse
from tests.slow import every, slow

FALLS = partial(lr_scheduler.StepLR, step_size=2, gamma=0.5)


def stepping(steps: int) -> Task:
    return replace(toy.task(), schedule=LRSchedule(FALLS, steps=steps))


def warming() -> Task:
    warm = LRSchedule(partial(lr_scheduler.OneCycleLR, max_lr=0.4, total_steps=8, cycle_momentum=False), 7, lr=0.1)
    return replace(toy.task(), schedule=warm)


def half() -> Task:
    return replace(toy.task(), schedule=lambda fraction: 1.0 - fraction / 2)


AHEAD = wrapped(LRSchedule, "__call__", lambda call, self, seen: call(min(seen + 1.0 / self.steps, 1.0)))
LATE = wrapped(Rates, "apply", lambda apply, self, fraction: apply(fraction * 0.9))


@pytest.mark.parametrize(
    ("task", "broken"),
    [(partial(stepping, 9), AHEAD), (half, LATE), *slow((partial(stepping, 40), LATE), (warming, AHEAD))],
)
def test_own_schedules_are_held_to_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: Callable[[], Task], broken: Break
) -> None:
    for folder, wrong in (("whole", False), ("broken", True)):
        if wrong:
            broken(monkeypatch)
        report = audited(*train_alone(tmp_path / folder, task), model="")
        assert any("learning rate" in line for line in different(report)) is wrong
        assert wrong or report.count("equal", "step")


def bootstrap(epoch: int) -> Tensor:
    return torch.randint(0, toy.SAMPLES, (99,))


def of_torch(kind: str) -> Any:
    points = range(toy.SAMPLES)
    if kind == "own generator":
        return RandomSampler(points, generator=torch.Generator().manual_seed(5))
    if kind == "batches":
        return BatchSampler(RandomSampler(points), 7, drop_last=True)
    return WeightedRandomSampler([1.0, *[2.0] * (toy.SAMPLES - 1)], 300)


SAMPLERS: dict[str, Callable[[], Any]] = {
    "function": lambda: bootstrap,
    **{kind: partial(of_torch, kind) for kind in ("own generator", "batches", "")},
}


@pytest.mark.parametrize("kind", every(2, SAMPLERS))
def test_own_samplers_are_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    def task() -> Task:
        return replace(toy.task(schedule=toy.rising_schedule), sampler=SAMPLERS[kind]())

    report = audited(*train_alone(tmp_path / "whole", task), model="")
    assert different(report) == []
    assert report.count("equal", "step")
    wrapped(EpochOrder, "_sampled", lambda sampled, self, epoch: sampled(0))(monkeypatch)
    found = different(audited(*train_alone(tmp_path / "first", task), model=""))
    assert any("loss" in line for line in found)
    assert not any("learning rate" in line for line in found)


def test_data_that_is_split_by_drawn_numbers_is_split_again(tmp_path: Path) -> None:
    """The audit drew others, and called a sound run wrong."""
    report = audited(*train_alone(tmp_path, toy.drawn), model="")
    assert different(report) == []
    assert report.count("equal", "initial") == 1
    assert report.count("equal", "step")


class Noisy(Dataset[Any]):
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        points, labels = toy.data()
        return points[index] + 0.3 * torch.randn(6), labels[index]

    def __len__(self) -> int:
        return toy.SAMPLES


class Together(Noisy):
    def __getitems__(self, wanted: list[int]) -> list[Any]:
        noise = torch.randn(len(wanted), 6)
        return [
            (point + more, label) for (point, label), more in zip(map(self.__getitem__, wanted), noise, strict=True)
        ]


def mixed(samples: list[Any]) -> Any:
    points, labels = default_collate(samples)
    return points + 0.3 * torch.rand(()) * points[torch.randperm(len(points))], labels


def first_alone(read: Any, self: Any, wanted: Any, draws: Any) -> Any:
    if draws is not None:
        draws.keys = draws.keys[:1].expand(len(draws.keys)) + 1
    return read(wanted, draws)


@pytest.mark.parametrize(
    "data",
    [*slow(Noisy()), Together(), *slow(Subset(Noisy(), range(150)), MapSource(Noisy(), collate=mixed))],
    ids=["one", "several", "part", "mixed"],
)
def test_what_own_data_draws_is_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Any) -> None:
    def task() -> Task:
        return replace(toy.task(), train_data=lambda: as_source(data))

    for steps in (None, 90):  # of epochs that have each sample several times
        report = audited(*train_alone(tmp_path / f"{steps}", task, steps=steps), model="")
        assert different(report) == []
        assert report.count("equal", "step")
    wrapped(MapSource, "_read", first_alone)(monkeypatch)
    assert any("loss" in line for line in different(audited(*train_alone(tmp_path / "one", task), model="")))


def test_what_collating_rows_of_tensors_draws_is_drawn_again(tmp_path: Path) -> None:
    """They were left out: two readings differed."""

    def task() -> Task:
        return replace(toy.task(), train_data=lambda: collated(toy.task().train_data(), mixed))

    report = audited(*train_alone(tmp_path, task), model="")
    assert different(report) == []
    assert report.count("equal", "step")


def brighter(batch: Any, draws: Draws) -> Any:
    shift = draws.integers(-1, 2, 6)
    return batch[0] * draws.uniform(1) + shift, batch[1]


def test_own_augmentation_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def task() -> Task:
        return replace(toy.task(), augment=brighter)

    report = audited(*train_alone(tmp_path / "whole", task), model="")
    assert different(report) == []
    assert report.count("equal", "step")
    wrapped(Draws, "uniform", lambda uniform, self, *shape: 1.0 - uniform(*shape))(monkeypatch)
    assert any("loss" in line for line in different(audited(*train_alone(tmp_path / "other", task), model="")))


def test_momenta_of_sparse_gradients_are_kept_and_done_again(tmp_path: Path) -> None:
    report = audited(*train_alone(tmp_path, partial(test_sparse.task, "layer", 0.9)), model="", whole=True)
    assert different(report) == []
    assert report.count("equal", "step") >= 4


def table() -> nn.Module:
    return nn.Sequential(nn.Embedding(50, 4), nn.Linear(4, 2))


def test_identifiers_one_a_sample_are_audited(tmp_path: Path) -> None:
    """The audit had ended with an error: such a sample has no dimension, as of a table of embeddings."""

    def task() -> Task:
        data = partial(TensorSource, torch.arange(toy.SAMPLES) % 50, toy.data()[1])
        return replace(toy.task(), model=table, train_data=data, eval_data=data)

    report = audited(*train_alone(tmp_path, task), model="")
    assert different(report) == []
    assert report.count("equal", "step") >= 4
