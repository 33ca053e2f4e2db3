"""Every option and method in the tables of the documents that the project started from is called, under our names."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import HashStore

import ddp
from ddp.core.window_sizes import controller
from ddp.core.window_sizes.controller import ElCheSettings
from ddp.parallel.group import make as make_group
from tests.api.conftest import Make
from tests.graph.oracle import data
from tests.graph.several import backward, on, plain
from tests.runtime import toy

pytestmark = pytest.mark.usefixtures("in_process")

BUILDER: dict[str, dict[str, Any]] = {
    "overhead_target": {"overhead_target": 0.1},
    "max_anchor": {"max_anchor": 50},
    "anchor": {"anchor": 10},
    "divergence_threshold": {"policy": "async", "divergence_threshold": 0.05},
    "max_batch_diff(0), lockstep": {"max_batch_diff": 0},
    "max_grad_norm": {"max_grad_norm": 5.0},
    "progressive_dispatch(true)": {"dispatch": "progressive"},
    "progressive_dispatch(false)": {"dispatch": "partition"},
    "lr_scale_ratio": {"lr_scale_ratio": 0.5},
    "no_divergence_guard": {"no_divergence_guard": True},
    "max_overshoot": {"policy": "async", "max_overshoot": 3},
    "partition_ratios": {"partition_ratios": (0.7, 0.3)},
    "snapshot_timeout_secs": {"backend": "cpu", "deadline_s": 5.0},
    "scheduler": {"schedule": lambda seen: 1.0 - seen},
    "timeline": {"timeline": ddp.Timeline(100)},
}
"""Builder's methods and `DdpRunConfig`; dataset, batch size, epochs, policy and backend are in every run."""


@pytest.mark.parametrize("option", BUILDER)
def test_an_option_of_the_builder(option: str, make: Make) -> None:
    run = make(**{"policy": "cadence", "backend": "nccl", "epochs": 1, "dataset": toy.data(64)} | BUILDER[option]).run()
    (epoch,) = iter(run.next_metrics, None)
    run.join()
    if option == "timeline":
        BUILDER[option]["timeline"].stop()
    assert epoch.samples == 64
    assert sum(epoch.per_rank_batch_share) == pytest.approx(1)
    if option == "partition_ratios":
        assert epoch.per_rank_batch_share == pytest.approx((0.7, 0.3), abs=0.1)
    if option == "lr_scale_ratio":
        assert epoch.lr == pytest.approx(0.15)


def test_a_worker_in_the_epoch_callback(make: Make) -> None:
    rates: list[float] = []

    def begins(epoch: int, worker: ddp.WorkerHandle) -> None:
        assert (worker.rank, str(worker.device), worker.epoch, worker.version) == (0, "cpu", epoch, 0)
        assert worker.step == 8 * epoch
        assert isinstance(worker.model, nn.Module)
        changes: list[Callable[[], None]] = [
            lambda: worker.set_lr(0.3),
            lambda: worker.scale_lr(0.5),
            lambda: worker.set_scheduler(lambda seen: 0.1),
            lambda: worker.set_lr_scale(4.0),
        ]
        changes[epoch]()
        rates.append(worker.lr)

    make(epochs=4, world_size=1, dataset=toy.data(64), epoch_callback=begins).run().join()
    assert rates == pytest.approx([0.3, 0.15, 0.01, 0.04])


def test_a_handle(make: Make) -> None:
    run = make(epochs=1).run()
    assert (run.world_size, run.devices) == (2, ("cpu", "cpu"))
    assert run.architecture_svg().startswith("<svg")
    run.join()
    (epoch,) = run.poll_metrics()
    assert (epoch.epoch, run.poll_metrics(), run.next_metrics()) == (0, [], None)


def test_the_graph_and_its_monitor(tmp_path: Path) -> None:
    timeline = ddp.Timeline(100)
    graph = on(2, speed_hint=(1.0, 0.4), overhead_target=0.1, max_anchor=2, max_grad_norm=5.0, timeline=timeline)
    assert (graph.is_distributed(), graph.has_el_che(), graph.world_size(), len(graph.devices())) == (True, True, 2, 2)
    assert ddp.is_heterogeneous() is False
    loader = ddp.DataLoader(
        data(64), batch_size=8, names=["point", "class"], seed=42, shuffle=True, drop_last=True, prefetch=2,
        vram_max_usage=0.9, loader="streaming", device="cpu",
    )  # fmt: skip
    graph.set_data_loader(loader, "point")
    graph.set_scheduler(lambda step: 0.1 * 0.9**step)
    graph.set_lr_scale(2.0)
    monitor = ddp.Monitor(1)
    monitor.watch(graph)
    for batch in graph.epoch(0):
        loss = nn.functional.cross_entropy(graph.forward_batch(batch), batch["class"])
        ddp.record_scalar("size", len(batch))
        loss.backward()
        graph.step()
    timeline.stop()
    steps = graph.training_step()
    assert steps > 0
    assert graph.lr() == pytest.approx(0.2 * 0.9 ** (steps - 1))
    assert (len(graph.throughput()), len(graph.shard_sizes())) == (2, 2)
    assert sum(graph.chunk_ratios()) == pytest.approx(1)
    monitor.log(0, timedelta(seconds=1), graph)
    monitor.finish()
    assert "size" in monitor.save_html(tmp_path / "page.html").read_text()
    graph.set_lr(0.5)
    assert graph.lr() == 0.5


def test_a_graph_step_by_step() -> None:
    graph = plain()
    assert graph.auto_distribute(plain) is False, "fewer than two GPUs"
    graph.distribute(plain, ["cpu", "cpu"])
    graph.set_optimizer(lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    backward(graph, *data(8))
    graph.step()
    assert graph.training_step() == 1


def test_a_loop_of_ones_own_over_two_models() -> None:
    """`Ddp::wrap` as for a GAN, with its counts of batches."""
    group = make_group(0, 1, torch.device("cpu"), HashStore(), "memory", 20.0)
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1)) for _ in range(2)]
    wrapped = ddp.wrap(models, ["cpu", "cpu"], group=group)
    assert (wrapped.world_size, [str(device) for device in wrapped.devices]) == (2, ["cpu", "cpu"])
    wrapped.sync_params()
    first, second = (model[0].weight for model in models)
    assert torch.equal(first, second)
    for call, mean in (
        (wrapped.all_reduce_gradients, 2.0),
        (lambda: wrapped.weighted_all_reduce_gradients([3, 1]), 1.5),
    ):
        for model, value in zip(models, (1.0, 3.0), strict=True):
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, value)
        call()
        assert first.grad is not None
        assert first.grad.flatten().tolist() == [mean, mean]
    models[1][1].running_mean.fill_(7.0)
    wrapped.sync_buffers()
    assert models[1][1].running_mean.item() == 0.0
    wrapped.close()
    group.close()


def test_el_che() -> None:
    settings = ElCheSettings(anchor=4, overhead_target=0.1, max_anchor=200, max_batch_diff=3, speed_hint=(1.0, 0.4))
    assert controller.start(settings, 2, 100).counts == (7, 4), "no more than 3 batches ahead"
