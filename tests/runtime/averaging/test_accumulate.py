"""Micro-batches: so many of a size equal one batch of all of them, in every mode that trains in step. And runs of steps."""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from torch import Tensor, nn

from ddp.core.errors import RankFailed
from ddp.core.messages.events import Progress
from ddp.core.samples.spans import Batch, Chunk, micro_batches
from ddp.core.settings.steps import StepSettings
from ddp.permutation import visited
from ddp.replica.task import Task, Tensors
from tests.runtime import toy
from tests.runtime.conftest import Play, Played
from tests.slow import slow

pytestmark = pytest.mark.usefixtures("in_process")


def double(dropout: bool = False, samples: int = toy.SAMPLES, **settings: Any) -> Task:
    """The toy task in double precision, in which sums in another order hardly differ."""
    task = toy.task(**settings)
    inputs, targets = toy.data(samples)
    source = toy.TensorSource(inputs.double(), targets)

    def model() -> nn.Module:
        return nn.Sequential(*task.model(), nn.Dropout(0.0 if not dropout else 0.5)).double()

    return replace(task, model=model, train_data=lambda: source, eval_data=lambda: source)


def static() -> Task:
    return replace(double(samples=66), static_graph=True)


def apart(one: Played, other: Played) -> float:
    mine, theirs = one.state(), other.state()
    return max(
        float((mine[name].detach().double() - value.detach().double()).abs().max()) for name, value in theirs.items()
    )


@pytest.mark.parametrize("samples", [1, 2, 3, 7, 15, 16, 31, 32])
@pytest.mark.parametrize("least", [1, 2])
def test_micro_batches_are_the_batch(samples: int, least: int) -> None:
    """Each sample once, in order; equally many on all ranks, for slices that differ by one."""
    parts = micro_batches(Batch(3, 10, 10 + samples, samples), 4, least)
    assert [parts[0].start, *(part.stop for part in parts)] == [10, *(part.start for part in parts[1:]), 10 + samples]
    sizes = [part.samples for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= 4 + (least > 1)
    assert min(sizes) >= min(least, samples)
    slices = [Chunk(0, 0, 2 * samples + 1, 2 * samples + 1, part, 2).at(0) for part in range(2)]
    assert len({len(micro_batches(part, 4, least)) for part in slices}) == 1
    assert micro_batches(Batch(0, 9, 9, 5, True), 4, least) == [Batch(0, 9, 9, 5, True)]


def test_micro_batches_are_no_larger_once_a_rank_is_lost() -> None:
    """Two of three ranks have the same global batch, and more micro-batches each."""
    for ranks in (3, 2):
        slices = [Chunk(0, 0, 24, 24, part, ranks).at(0) for part in range(ranks)]
        assert {part.samples for each in slices for part in micro_batches(each, 4, 1)} == {4}


MODES = ["nccl", "zero1", "zero2", "zero3"]


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize("backend", MODES)
def test_micro_batches_equal_one_batch(play: Play, backend: str, optimizer: str) -> None:
    """203 samples: the last step of an epoch is a part of one."""
    task = partial(double, optimizer=optimizer)
    whole = play("sync", backend, task, batch_size=32)
    parts = play("sync", backend, task, batch_size=32, step=StepSettings(accumulate=4))
    assert apart(parts, whole) < 1e-12
    assert len(parts.digests) == 1
    assert sum(event.steps for event in parts.of(Progress)) == sum(event.steps for event in whole.of(Progress))
    assert sum(event.samples for event in parts.of(Progress)) == 2 * toy.SAMPLES


@pytest.mark.parametrize("backend", [*slow("torch_ddp", "torch_zero1"), "torch_fsdp"])
def test_micro_batches_equal_one_batch_of_pytorch(play: Play, backend: str) -> None:
    """Two samples are left for the last step of an epoch: each rank has one. The graph is static, as bundled models' are."""
    whole = play("sync", backend, static, batch_size=32, epochs=1)
    parts = play("sync", backend, static, batch_size=32, epochs=1, step=StepSettings(accumulate=4))
    assert apart(parts, whole) < 1e-12


def test_micro_batches_equal_one_batch_alone_and_in_one_process(play: Play) -> None:
    graph = importlib.import_module("ddp.graph.engine")
    for fields in ({"world_size": 1}, {"engine": graph}):
        whole = play("sync", "nccl", double, batch_size=32, **fields)
        parts = play("sync", "nccl", double, batch_size=32, step=StepSettings(accumulate=4), **fields)
        assert apart(parts, whole) < 1e-12


GRAPH = {"engine": importlib.import_module("ddp.graph.engine")}
WINDOWS = {"options": {"anchor": 3, "max_anchor": 3, "partition_ratios": (0.6, 0.4)}}


@pytest.mark.parametrize(
    ("policy", "fields"),
    [
        *(("sync", fields | {"step": StepSettings(accumulate=4)}) for fields in ({"world_size": 1}, {}, GRAPH)),
        ("cadence", GRAPH | WINDOWS),
        ("cadence", WINDOWS | {"step": StepSettings(accumulate=4)}),
        ("sync", {"world_size": 1, "max_grad_norm": 0.1}),
        ("sync", {"world_size": 1, "step": StepSettings(precision="fp16")}),
    ],
)
def test_gradients_that_share_memory_change_once(play: Play, policy: str, fields: dict[str, Any]) -> None:
    """The second pass was added to both, clipping and unscaling done twice, where two parameters' gradients were one."""
    one, two = (
        play(policy, "nccl", partial(toy.summed, apart), **{"batch_size": 32, **fields}) for apart in (False, True)
    )
    assert one.digests == two.digests


def test_the_rest_of_an_epoch_is_cut_alike_in_one_process(play: Play) -> None:
    """Three ranks have 5, 4 and 4 of the last 13 samples. Replicas of one process cut these on their own, unlike ranks."""
    task = partial(toy.task, norm=True, samples=37)
    fields: dict[str, Any] = {"world_size": 3, "step": StepSettings(accumulate=2)}
    graph = importlib.import_module("ddp.graph.engine")
    ranks, replicas = (play("sync", "nccl", task, **fields, **more) for more in ({}, {"engine": graph}))
    assert apart(ranks, replicas) < 1e-6


def clears(model: nn.Module, batch: Tensors) -> Tensor:
    model.zero_grad()
    return toy.loss(model, batch)


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_step_that_clears_gradients_is_refused(play: Play, world_size: int) -> None:
    task = partial(replace, toy.task(), loss=clears)
    play("sync", "nccl", task, epochs=1, world_size=world_size)
    with pytest.raises(RankFailed, match="leave backward\\(\\) and zero_grad\\(\\) to the engine"):
        play("sync", "nccl", task, epochs=1, world_size=world_size, step=StepSettings(accumulate=2))


def test_micro_batches_are_seeded_by_their_first_position(play: Play) -> None:
    """Dropout draws in a micro-batch what it draws in a batch that begins there."""
    one = play("sync", "nccl", partial(double, True, 192, lr=0.0), world_size=1, batch_size=8)
    four = play(
        "sync", "nccl", partial(double, True, 192, lr=0.0), world_size=1, batch_size=32, step=StepSettings(accumulate=4)
    )
    losses = [sum(event.loss_sum for event in run.of(Progress)) for run in (one, four)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


@pytest.mark.parametrize("parts", [0, -1, 1.5, True, 10_001])
def test_parts_that_cannot_be(parts: Any) -> None:
    with pytest.raises(ValueError, match="must be a whole number from 1 to 10000"):
        StepSettings(parts)


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_run_of_steps_takes_one_order_after_the_other(play: Play, world_size: int) -> None:
    """As a sampler of that order would have it, bit for bit; not as many steps are epochs."""
    steps = 60 // world_size
    fields: dict[str, Any] = {"world_size": world_size, "batch_size": 8}
    run = play("sync", "nccl", steps=steps, epochs=2, **fields)
    half = {epoch: visited(3, epoch, toy.SAMPLES, 240).tolist() for epoch in range(2)}
    wanted = play("sync", "nccl", partial(replace, toy.task(), sampler=half.get), epochs=2, **fields)
    assert run.digests == wanted.digests
    assert sum(event.samples for event in run.of(Progress)) == 480
    short = play("sync", "nccl", steps=6, epochs=1, **fields)
    assert sum(event.steps for event in short.of(Progress)) == 6 * world_size
