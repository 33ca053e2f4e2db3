"""A small training of a user's own, as `ddp.Trainer` takes it, whose ranks are threads of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.audit.audit import audit
from bench.audit.audit_input import AuditOrder
from bench.results.audit_file import AuditReport
from ddp import Trainer, record_scalar
from ddp.engine import elche
from ddp.engine.in_process import InProcessRanks
from ddp.process import forkserver
from tests.runtime import toy


def net() -> nn.Module:
    return toy.net(norm=True)


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def step(model: nn.Module, batch: Any) -> Tensor:
    outputs = model(batch[0])
    record_scalar("right", (outputs.argmax(1) == batch[1]).double().mean())
    return nn.functional.cross_entropy(outputs, batch[1])


def right(model: nn.Module, batch: Any) -> Tensor:
    return (model(batch[0]).argmax(1) == batch[1]).double().mean()


def trainer(output: Path | None, **changes: Any) -> Trainer:
    """A recorded trainer of the toy; keywords replace arguments."""
    arguments: dict[str, Any] = {
        "model_factory": net,
        "optimizer_factory": sgd,
        "train_step": step,
        "dataset": toy.data(),
        "batch_size": 8,
        "epochs": 2,
        "seed": 3,
        "world_size": 2,
        "lr_scale_ratio": 0.0,
        "deadline_s": 30.0,
        "eval_step": right,
        "eval_dataset": toy.data(50, seed=2),
        "metric": "accuracy",
        "name": "touch",
        "audit": False,
    }
    return Trainer(**{**arguments, "output": output, **changes})


class AuditHere:
    """The audit in this process."""

    def __init__(self, order: AuditOrder, preload: tuple[str, ...]) -> None:
        self._order = order

    def __enter__(self) -> AuditHere:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def report(self, stopped: Callable[[], bool] = lambda: False) -> AuditReport:
        return audit(self._order)


@contextmanager
def in_threads() -> Iterator[pytest.MonkeyPatch]:
    """Ranks are threads, audits are in this process, nothing is forked, and no timeline is drawn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elche, "RankProcesses", InProcessRanks)
        patch.setattr(forkserver, "warm", lambda preload=(): None)
        patch.setattr("bench.timeline.draw", lambda *picture: None)
        patch.setattr("bench.audit.process.AuditProcess", AuditHere)
        patch.setattr("bench.runner.script_again.AuditProcess", AuditHere)
        yield patch
