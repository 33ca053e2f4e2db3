"""Tasks that record scalars, call back and write down what they see. Importable by name, so that ranks can call them."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from ddp import WorkerHandle, record_scalar
from ddp.replica.task import Task, Tensors
from tests.runtime import toy


def _loss(model: nn.Module, batch: Tensors) -> Tensor:
    record_scalar("size", len(batch[0]))
    record_scalar("half", torch.tensor(len(batch[0]) / 2))
    if len(batch[0]) < 8:
        record_scalar("tail", 1)
        record_scalar("odd", float("nan"))
    return toy.loss(model, batch)


def recording() -> Task:
    return replace(toy.task(), loss=_loss)


def _steep(factor: float, model: nn.Module, batch: Tensors) -> Tensor:
    return factor * toy.loss(model, batch)


def steep(samples: int, factor: float = 50.0) -> Task:
    """A loss whose gradients are far above 1."""
    return replace(toy.task(samples=samples), loss=partial(_steep, factor))


def _note(folder: Path, epoch: int, worker: WorkerHandle) -> None:
    seen = {
        "rank": worker.rank,
        "epoch": epoch,
        "same": worker.epoch,
        "step": worker.step,
        "version": worker.version,
        "lr": worker.lr,
        "device": str(worker.device),
        "world_size": worker.world_size,
        "parameters": sum(p.numel() for p in worker.model.parameters()),
    }
    with (folder / f"seen-{worker.rank}.jsonl").open("a") as file:
        file.write(json.dumps(seen) + "\n")


def noting(folder: Path) -> Task:
    return replace(toy.task(), epoch_callback=partial(_note, folder))


def _rates(epoch: int, worker: WorkerHandle) -> None:
    match epoch:
        case 0:
            worker.set_lr(0.5)
        case 1:
            worker.scale_lr(0.5)
            worker.scale_lr(0.5)
        case 2:
            worker.set_scheduler(lambda fraction: 3.0)
        case 3:
            worker.scale_lr(10.0)
            worker.set_lr_scale(0.1)


def rates() -> Task:
    """Own rate 0.1; by epoch 0.5, 0.125, 0.3 (of a schedule), 0.3."""
    return replace(toy.task(lr=0.1, schedule=toy.rising_schedule), epoch_callback=_rates)


def _fail(epoch: int, worker: WorkerHandle) -> None:
    if epoch == 1:
        raise LookupError("no such epoch in my table")


def failing() -> Task:
    return replace(toy.task(), epoch_callback=_fail)


def _late(model: nn.Module, batch: Tensors) -> tuple[Tensor, Tensor]:
    record_scalar("late", 1.0)
    return toy.evaluate(model, batch)


def recording_too_late() -> Task:
    return replace(toy.task(), evaluate=_late)
