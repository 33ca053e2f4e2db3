"""State of a user's objects: each virtual rank has its own, as ranks in processes have; ranks at once have none."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from ddp.data.dataset import MapSource
from ddp.data.seeded import others
from ddp.data.source import TensorSource
from ddp.engine import own_tasks
from ddp.engine.own_tasks import LARGE, OwnTasks
from ddp.replica.task import Job, Task
from ddp.virtual import engine
from ddp.virtual.eligibility import unfit
from tests.runtime import toy
from tests.runtime.conftest import Play


class Annealed:
    """A loss whose smoothing grows with its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        self.calls += 1
        smoothing = min(self.calls / 100, 0.5)
        return nn.functional.cross_entropy(model(batch[0]), batch[1], label_smoothing=smoothing)


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Samples with noise of a generator of its own."""

    def __init__(self) -> None:
        self.inputs, self.labels = toy.data()
        self.numbers = np.random.default_rng(0)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index] + 0.3 * float(self.numbers.random()), self.labels[index]


class Notes(Noisy):
    """Notes which of its parts are copied."""

    def __init__(self, read: list[int]) -> None:
        super().__init__()
        self.parts = [Part(place, read) for place in range(toy.SAMPLES)]


class Part:
    def __init__(self, place: int, read: list[int]) -> None:
        self.place, self.text = place, f"{place}" * 10000
        self.read = read

    def __reduce__(self) -> Any:
        self.read.append(self.place)
        return str, (self.text,)


class Dropped(nn.Module):
    """A layer that Python's random numbers drop."""

    def __init__(self) -> None:
        super().__init__()
        self.net = toy.net(norm=False)

    def forward(self, inputs: Tensor) -> Tensor:
        kept = not self.training or random.random() >= 0.1
        return torch.as_tensor(self.net(inputs) * (1.0 if kept else 0.0))


class Counted(Dropped):
    """A layer whose output grows with its steps."""

    steps = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.steps += self.training
        return torch.as_tensor(self.net(inputs) * (1 + 0.001 * self.steps))


def annealed() -> Task:
    return replace(toy.task(), loss=Annealed())


def enclosed() -> Task:
    calls = 0

    def loss(model: nn.Module, batch: Any) -> Tensor:
        nonlocal calls
        calls += 1
        return toy.loss(model, batch) / calls

    return replace(toy.task(), loss=loss)


def noisy() -> Task:
    source = MapSource(Noisy())
    return replace(toy.task(), train_data=lambda: source)


@pytest.mark.parametrize("task", [annealed, enclosed, noisy])
def test_a_user_s_object_with_state_has_the_bits_of_processes(play: Play, task: Callable[[], Task]) -> None:
    """All ranks shared the object, so it counted the steps of all of them."""
    real, mine = (play("sync", "nccl", task, epochs=1, **more).digests for more in ({}, {"engine": engine}))
    assert mine == real
    assert len(mine) == 1


def tasks_of(play: Play, task: Callable[[], Task]) -> tuple[Task, Task]:
    made = OwnTasks(job_of(play, task))
    return made(), made()


def job_of(play: Play, task: Callable[[], Task]) -> Job:
    return replace(play("cadence", "nccl", epochs=1, engine=engine).job, task=task)


def test_ranks_share_large_tensors_of_data_and_what_cannot_be_copied(play: Play) -> None:
    held = TensorSource(torch.rand(LARGE // 4, 1), torch.zeros(LARGE // 4, dtype=torch.uint8))
    assert held.tensors[1].nbytes < LARGE <= held.tensors[0].nbytes
    sets: list[Any] = [own.train_data() for own in tasks_of(play, lambda: replace(toy.task(), train_data=lambda: held))]
    large, small = zip(*(each.tensors for each in sets), strict=True)
    assert large[0] is large[1]
    assert small[0] is not small[1]
    one, other = tasks_of(play, lambda: replace(toy.task(), loss=Annealed(), schedule=Locked()))
    assert one.loss is other.loss


def test_data_too_large_for_a_copy_of_each_rank_is_shared(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_tasks, "ROOM", 2000)
    read: list[int] = []
    source, loss = MapSource(Notes(read)), Annealed()
    one, other = tasks_of(play, lambda: replace(toy.task(), loss=loss, train_data=lambda: source))
    assert one.train_data() is other.train_data() is source
    assert 0 < len(read) < toy.SAMPLES, "not all of it is copied to know its size"
    assert len({id(each) for each in (loss, one.loss, other.loss)}) == 3


class Locked:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, seen: float) -> float:
        return 1.0


def test_an_object_in_two_parts_of_a_task_is_one_in_each_rank_s(play: Play) -> None:
    def task() -> Task:
        both = Annealed()
        return replace(toy.task(), loss=both, epoch_callback=partial(print, both))

    for own in tasks_of(play, task):
        assert isinstance(own.epoch_callback, partial)
        assert own.epoch_callback.args[0] is own.loss


def test_each_rank_finds_the_random_numbers_behind_those_of_the_task(play: Play) -> None:
    def task() -> Task:
        torch.rand(3), random.random()
        return toy.task()

    made, found = OwnTasks(job_of(play, task)), []
    for _ in range(2):
        torch.manual_seed(5)
        random.seed(5)
        made()
        found.append((float(torch.rand(1)), random.random()))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (lambda: replace(toy.task(), model=Dropped), "draws random numbers of Python or NumPy"),
        (lambda: replace(toy.task(), model=Counted), "a step changes the variable steps"),
        (annealed, "a step changes the variable calls"),
        (enclosed, "a step changes the variable calls"),
    ],
)
def test_steps_with_state_are_not_done_for_many_at_once(play: Play, task: Callable[[], Task], reason: str) -> None:
    """They trained something else from sixteen ranks on, without a word."""
    job, numbers = job_of(play, task), others()
    assert reason in unfit(job)
    assert others() == numbers


def test_whether_ranks_train_at_once_is_tried_on_a_copy(play: Play) -> None:
    loss = Annealed()
    assert unfit(job_of(play, lambda: replace(toy.task(), loss=loss)))
    assert loss.calls == 0
