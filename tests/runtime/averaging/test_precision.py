"""Training in half precision: what PyTorch's autocast and GradScaler do, in every mode."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddp.core.errors import Diverged, OutOfResources
from ddp.core.messages.events import Progress
from ddp.core.settings.steps import StepSettings
from ddp.data.epoch_order import order
from ddp.engine.modes import modes
from ddp.engine.step_checks import check_step
from ddp.replica.optim.loss_scale import FIRST, STEPS, LossScale
from ddp.replica.passes import StepPasses
from ddp.replica.task import Task, Tensors
from tests.runtime import toy
from tests.runtime.conftest import Play
from tests.slow import few

pytestmark = pytest.mark.usefixtures("in_process")

BF16, FP16 = StepSettings(precision="bf16"), StepSettings(precision="fp16")


def times(factor: float, model: nn.Module, batch: Tensors) -> Tensor:
    return toy.loss(model, batch) * factor


def steep(factor: float = 1.0, **settings: Any) -> Task:
    """The toy task with a loss so many times as large: from 30 on, its first gradients overflow in fp16."""
    return replace(toy.task(lr=0.1 / factor, **settings), loss=partial(times, factor))


def spiked(every: int = 150) -> Task:
    """The toy task with samples that overflow in fp16: the loss of their batches is NaN."""
    inputs, targets = toy.data()
    inputs[::every] = 1e6
    return replace(toy.task(), train_data=partial(toy.TensorSource, inputs, targets))


def by_hand(
    initial: dict[str, Tensor], factor: float, dtype: torch.dtype, make: Callable[[], Task] | None = None
) -> dict[str, Tensor]:
    """One epoch as the documentation of torch.amp writes it."""
    task = make() if make is not None else steep(factor)
    data = task.train_data()
    model = task.model()
    model.load_state_dict(initial)
    optimizer = task.optimizer(list(model.parameters()))
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)
    for chosen in order(3, 0, toy.SAMPLES).split(16):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = task.loss(model, data.batch(chosen))
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
    assert dtype == torch.bfloat16 or (scaler.get_scale() < FIRST) == (factor > 1.0)
    return model.state_dict()


@pytest.mark.parametrize("factor", [1.0, 300.0])
@pytest.mark.parametrize(("step", "dtype"), [(BF16, torch.bfloat16), (FP16, torch.float16)])
def test_one_rank_trains_as_a_loop_written_by_hand(
    play: Play, step: StepSettings, dtype: torch.dtype, factor: float
) -> None:
    """Bit for bit, steps that are left out as gradients overflow too."""
    fields: dict[str, Any] = {"world_size": 1, "epochs": 1, "batch_size": 16}
    initial = play("sync", "nccl", partial(toy.task, lr=0.0), **fields).state()
    found = play("sync", "nccl", partial(steep, factor), step=step, **fields).state()
    expected = by_hand(initial, factor, dtype)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert all(value.dtype == torch.float32 for value in found.values())


def test_a_step_left_out_may_have_a_loss_that_is_not_finite(play: Play) -> None:
    """The run ended as diverged, where a loop with GradScaler goes on."""
    fields: dict[str, Any] = {"world_size": 1, "epochs": 1, "batch_size": 16}
    initial = play("sync", "nccl", partial(toy.task, lr=0.0), **fields).state()
    alone = play("sync", "nccl", spiked, step=FP16, **fields)
    expected = by_hand(initial, 2.0, torch.float16, spiked)
    assert all(torch.equal(alone.state()[name], value) for name, value in expected.items())
    assert all(event.loss_sum is not None for event in alone.of(Progress))
    graph = importlib.import_module("ddp.graph.engine")
    for step in (FP16, replace(FP16, accumulate=2)):
        ranks, replicas = (play("sync", "nccl", spiked, step=step, **more) for more in ({}, {"engine": graph}))
        assert ranks.digests == replicas.digests
        assert all(event.loss_sum is not None for run in (ranks, replicas) for event in run.of(Progress))


@pytest.mark.parametrize("fields", [{"world_size": 1}, {}, {"engine": importlib.import_module("ddp.graph.engine")}])
def test_a_run_that_leaves_out_every_step_is_no_success(play: Play, fields: dict[str, Any]) -> None:
    with pytest.raises(Diverged, match="no step was made, as the gradients of each overflowed in fp16"):
        play("sync", "nccl", partial(spiked, 1), step=FP16, epochs=1, batch_size=32, **fields)


@pytest.mark.parametrize(("backend", "step"), few(["nccl", "zero1", "zero2", "zero3"], [BF16, FP16]))
def test_ranks_train_what_one_does_on_the_whole_batch(play: Play, backend: str, step: StepSettings) -> None:
    """But for the roundings of half precision; all ranks leave out the same steps."""
    alone = play("sync", "nccl", partial(steep, 300.0), world_size=1, batch_size=16, step=step)
    ranks = play("sync", backend, partial(steep, 300.0), step=step)
    assert len(ranks.digests) == 1
    for name, value in alone.state().items():
        torch.testing.assert_close(ranks.state()[name], value, rtol=0.02, atol=0.02)


def test_one_process_trains_the_same(play: Play) -> None:
    graph = importlib.import_module("ddp.graph.engine")
    alone = play("sync", "nccl", partial(steep, 300.0), world_size=1, batch_size=16, step=FP16)
    ranks = play("sync", "nccl", partial(steep, 300.0), engine=graph, step=FP16)
    for name, value in alone.state().items():
        torch.testing.assert_close(ranks.state()[name], value, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("backend", ["torch_ddp", "torch_fsdp"])
def test_pytorchs_backends_train_the_same(play: Play, backend: str) -> None:
    alone = play("sync", "nccl", partial(steep, 300.0), world_size=1, batch_size=16, epochs=1, step=FP16)
    ranks = play("sync", backend, partial(steep, 300.0), epochs=1, step=FP16)
    for name, value in alone.state().items():
        torch.testing.assert_close(ranks.state()[name], value, rtol=0.02, atol=0.02)


def test_the_factor_on_the_loss_follows_overflows() -> None:
    scale, gradient = LossScale(), torch.full((3,), 2.0)
    assert scale.follow(scale.unscale([gradient]))
    assert gradient.tolist() == [2.0 / FIRST] * 3
    assert not scale.follow(scale.unscale([gradient, torch.tensor([float("inf")])]))
    assert (scale.value, scale.steps) == (FIRST / 2, 0)
    for _ in range(STEPS):
        assert scale.follow(True)
    assert (scale.value, scale.steps) == (FIRST, 0)
    while scale.value > 1.0:
        assert not scale.follow(False)
    assert scale.follow(False)  # as without a factor: the loss shows it


def test_a_checkpoint_has_the_factor(play: Play) -> None:
    job = play("sync", "nccl", toy.task, world_size=1, epochs=1, step=FP16).job
    model = toy.net(False)
    one, two = (StepPasses(job, model, list(model.parameters()), torch.device("cpu")) for _ in range(2))
    assert one.scale is not None
    one.scale.follow(False)
    two.restore(one.capture())
    assert two.capture() == {"loss_scale": {"value": FIRST / 2, "steps": 0}}


def test_what_cannot_be_is_refused(play: Play) -> None:
    with pytest.raises(ValueError, match="fp8' is not one of fp32, bf16, fp16"):
        StepSettings(precision="fp8")
    with pytest.raises(
        ValueError, match=r"train.precision=fp16 with mode=torch_local_sgd, .* choose one of solo, nccl_sync"
    ):
        check_step(FP16, modes()["torch_local_sgd"], 2, "train.")
    check_step(FP16, modes()["torch_local_sgd"], 1)
    check_step(BF16, modes()["torch_local_sgd"], 2)


def test_half_precision_that_the_processor_lacks_is_one_line(play: Play) -> None:
    with pytest.raises(
        OutOfResources, match=r"no torch.bfloat16 for this model here \(could not create .* LSTM\): choose another"
    ):
        play("sync", "nccl", weak, step=BF16)


def weak() -> Task:
    return replace(toy.task(), loss=lacking)


def lacking(model: nn.Module, batch: Tensors) -> Tensor:
    raise RuntimeError("could not create a primitive descriptor for the LSTM. Run workload with environment variable")
