"""A script as its author types it: every call of ours has a type, and none is Any."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_type

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import bench
import ddp
from ddp import CheckpointInfo, EpochMetrics, Monitor, RunHandle, Timeline, TrainedState, Trainer, WorkerHandle

Batch = tuple[Tensor, Tensor]


def make_model() -> nn.Module:
    return nn.Linear(4, 2)


def make_optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def loss(model: nn.Module, batch: Batch) -> Tensor:
    value = nn.functional.cross_entropy(model(batch[0]), batch[1])
    ddp.record_scalar("cross-entropy", value)
    return value


def accuracy(model: nn.Module, batch: Batch) -> Tensor:
    right: Tensor = model(batch[0]).argmax(1) == batch[1]
    return right.double().mean()


def begun(epoch: int, worker: WorkerHandle) -> None:
    assert_type(worker.rank, int)


def saved(info: CheckpointInfo) -> None:
    print(info.path)


def main() -> None:
    data = TensorDataset(torch.randn(16, 4), torch.zeros(16, dtype=torch.long))
    timeline = Timeline()
    trainer = Trainer(
        make_model,
        make_optimizer,
        loss,
        data,
        batch_size=4,
        epochs=2,
        eval_step=accuracy,
        eval_dataset=data,
        epoch_fn=begun,
        checkpoint_fn=saved,
        timeline=timeline,
        output="runs",
        name="typed",
    )
    run = trainer.run()
    assert_type(run, RunHandle)
    monitor = Monitor(epochs=2)
    run.setup_monitor(monitor)
    while (epoch := run.next_metrics()) is not None:
        assert_type(epoch, EpochMetrics)
        monitor.log(epoch.epoch, epoch.seconds, epoch)
    state = run.join()
    assert_type(state, TrainedState)
    verdict = bench.judge(run)
    print(verdict, timeline.save_json("timeline.json"), bench.load("runs").shape)


if __name__ == "__main__":
    main()
