"""What feeds a step, in real runs: augmentation, resident and streamed data, orders of one's own; the same in every mode."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, WeightedRandomSampler

from ddp.core.errors import RankFailed
from ddp.core.messages.events import Merged, Progress, Ready
from ddp.core.samples.spans import measure, union
from ddp.core.settings.faults import parse
from ddp.core.settings.loader import Loading
from ddp.core.settings.steps import StepSettings
from ddp.data import Draws, MapSource
from ddp.data.streaming import NAME
from ddp.engine import solo
from ddp.graph import engine as graph
from ddp.replica.task import Task, Tensors
from tests.runtime import toy
from tests.runtime.conftest import Play, spying

pytestmark = pytest.mark.usefixtures("in_process")

STREAMING = Loading("streaming")


class Rows(Dataset[Any]):
    """The toy's data, sample by sample, with noise of the data set's own."""

    def __init__(self, bad: int = -1) -> None:
        self.inputs, self.targets = toy.data()
        self.bad = bad

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index == self.bad:
            raise OSError("the file is truncated")
        return self.inputs[index] + torch.rand(6), self.targets[index]


def of_rows(bad: int = -1) -> Task:
    return replace(toy.task(), train_data=lambda: MapSource(Rows(bad)))


def jitter(batch: Tensors, draws: Draws) -> Tensors:
    return (batch[0] + draws.uniform(6), batch[1])


def jittered() -> Task:
    return replace(toy.task(lr=0.5), augment=jitter)


def test_augmentation_is_the_same_on_several_ranks_as_on_one(play: Play) -> None:
    alone = play("sync", "nccl", jittered, world_size=1, batch_size=16)
    sync = play("sync", "nccl", jittered)
    plain = play("sync", "nccl", toy.task, world_size=1, batch_size=16)
    for name, value in alone.state().items():
        torch.testing.assert_close(sync.state()[name], value, rtol=0, atol=1e-5)
    assert plain.digests != alone.digests


def test_resident_and_streamed_data_train_the_same_bits(play: Play) -> None:
    before = set(threading.enumerate())  # those of a graph that another test left end when it is collected

    def digests(kind: str, **more: Any) -> set[str]:
        played = play("sync", "nccl", jittered, loading=Loading(kind), **more)
        assert [event.loader for event in played.of(Ready)] == [kind] * played.job.world_size
        return played.digests

    assert len(digests("resident")) == 1
    assert digests("resident") == digests("streaming")
    assert digests("resident", world_size=1, engine=solo) == digests("streaming", world_size=1, engine=solo)
    # Too few steps for the balancing, which goes by measured speeds, to set in: unequal shares are other roundings.
    fixed: dict[str, Any] = {"engine": graph, "batch_size": 32}
    assert digests("resident", **fixed) == digests("streaming", **fixed)
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == NAME]


def test_a_data_sets_own_randomness_is_the_same_on_several_ranks_as_on_one(play: Play) -> None:
    alone = play("sync", "nccl", of_rows, world_size=1, batch_size=16)
    sync = play("sync", "nccl", of_rows)
    for name, value in alone.state().items():
        torch.testing.assert_close(sync.state()[name], value, rtol=0, atol=1e-5)


@pytest.mark.parametrize("policy", ["sync", "cadence"])
def test_every_sample_is_in_the_model_once_though_a_streaming_rank_is_lost(play: Play, policy: str) -> None:
    options = toy.short_windows(policy)
    played = play(policy, "nccl", loading=STREAMING, faults=(parse("1@5:crash"),), options=options, deadline_s=20.0)
    for epoch in range(played.job.epochs):
        spans = [span for event in played.of(Merged) if event.epoch == epoch for span in event.spans]
        assert measure(union((), tuple(spans))) == toy.SAMPLES


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_bad_sample_is_named_with_its_rank(play: Play, world_size: int) -> None:
    with pytest.raises(RankFailed, match=r"BadSample: sample 77: OSError: the file is truncated") as failed:
        play("sync", "nccl", partial(of_rows, 77), world_size=world_size, tolerate_loss=False)
    assert f"rank {failed.value.rank}" in str(failed.value)


def evens(epoch: int) -> range:
    return range(epoch % 2, toy.SAMPLES - 1, 2)


def every_other(folder: Path) -> Task:
    return replace(spying(folder)(), sampler=evens, drop_last=True)


def weighted() -> Task:
    return replace(toy.task(), sampler=WeightedRandomSampler([1.0] * toy.SAMPLES, 64))


def longer() -> Task:
    return replace(toy.task(), sampler=lambda epoch: range(20 + epoch))


@pytest.mark.parametrize("world_size", [1, 2])
def test_an_order_of_ones_own_is_trained_and_no_more(play: Play, tmp_path: Path, world_size: int) -> None:
    played = play("sync", "nccl", partial(every_other, tmp_path), world_size=world_size)
    whole = 101 - 101 % (8 * world_size)
    expected = Counter(list(evens(0))[:whole] + list(evens(1))[:whole])
    assert served(tmp_path) == expected
    assert sum(event.samples for event in played.of(Progress)) == 2 * whole


def served(folder: Path) -> Counter[int]:
    lines = [line for path in folder.glob("served-*.txt") for line in path.read_text().splitlines()]
    return Counter(int(index) for line in lines for index in line.split())


def test_a_sampler_of_pytorch_draws_the_same_on_every_rank(play: Play) -> None:
    alone = play("sync", "nccl", weighted, world_size=1, batch_size=16)
    sync = play("sync", "nccl", weighted)
    for name, value in alone.state().items():
        torch.testing.assert_close(sync.state()[name], value, rtol=0, atol=1e-5)


def test_a_sampler_that_changes_its_length_is_refused(play: Play) -> None:
    with pytest.raises(RankFailed, match="20 indices for epoch 0 and 21 for epoch 1"):
        play("sync", "nccl", longer, world_size=1)


class Staged(Dataset[Any]):
    """Samples that an epoch callback changes, with its own step that knows them."""

    def __init__(self, augments: bool) -> None:
        self.stage, self.augments = -1, augments

    def __len__(self) -> int:
        return toy.SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((6,), 0.0 if self.augments else float(self.stage)), index % 2

    def begin(self, epoch: int, worker: Any) -> None:
        self.stage = epoch

    def augment(self, batch: Tensors, draws: Draws) -> Tensors:
        return (batch[0] + self.stage, batch[1]) if self.augments else batch

    def loss(self, model: Any, batch: Tensors) -> torch.Tensor:
        assert batch[0].unique().tolist() == [self.stage]
        return toy.loss(model, batch)


def staged(augments: bool) -> Task:
    own = Staged(augments)
    data = {"train_data": lambda: MapSource(own), "augment": own.augment}
    return replace(toy.task(), **data, loss=own.loss, epoch_callback=own.begin)


@pytest.mark.parametrize("augments", [True, False])
@pytest.mark.parametrize(
    ("policy", "backend", "fields"),
    [
        ("sync", "nccl", {"world_size": 1}),
        ("sync", "nccl", {"step": StepSettings(accumulate=2)}),
        ("cadence", "nccl", {}),
        ("async", "cpu", {}),
    ],
)
def test_what_a_callback_changes_is_so_for_its_whole_epoch(
    play: Play, policy: str, backend: str, fields: dict[str, Any], augments: bool
) -> None:
    """Batches were read ahead of the callback of their epoch."""
    played = play(policy, backend, partial(staged, augments), epochs=4, **fields)
    assert sum(event.samples for event in played.of(Progress)) == 4 * toy.SAMPLES
