"""What a user's own loss, model or evaluation draws or counts itself is no defect: it is skipped, and said to be."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bench.audit.repeated.rows import UNREPEATED
from ddp.replica.task import Task
from tests.bench.audit.audit_breaks import twice, wrapped
from tests.bench.audit.audited import audited, different, train_alone
from tests.runtime import toy

COUNT = [0]


def by_numpy(model: nn.Module, batch: Any) -> Tensor:
    share = float(np.random.beta(1.0, 1.0))
    mixed = share * batch[0] + (1.0 - share) * batch[0].flip(0)
    return nn.functional.cross_entropy(model(mixed), batch[1])


def by_python(model: nn.Module, batch: Any) -> Tensor:
    return toy.loss(model, batch) * random.choice((0.5, 1.0))


def by_count(model: nn.Module, batch: Any) -> Tensor:
    COUNT[0] += 1
    return toy.loss(model, batch) / (1.0 + COUNT[0])


@pytest.mark.parametrize("loss", [by_numpy, by_python, by_count])
def test_a_step_that_follows_from_no_seed_is_skipped(tmp_path: Path, loss: Callable[..., Tensor]) -> None:
    report = audited(*train_alone(tmp_path / "whole", lambda: replace(toy.task(), loss=loss)), model="")
    assert different(report) == []
    assert UNREPEATED in {item.line for item in report.items if item.outcome == "skipped"}


def test_a_step_that_is_repeatable_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ddp.replica.replica import Replica

    wrapped(Replica, "step", twice)(monkeypatch)
    assert different(audited(*train_alone(tmp_path / "twice", toy.task), model=""))


class Skipping(nn.Module):
    """Has dropout, and leaves a block with a norm out now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.ends, self.block = (
            nn.Sequential(nn.Dropout(0.2), toy.net(False)),
            nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)),
        )

    def forward(self, points: Tensor) -> Tensor:
        kept = not self.training or float(torch.rand(())) > 0.05
        out: Tensor = self.ends(points + self.block(points) if kept else points)
        return out


@pytest.mark.parametrize("seed", [6, 7, 10])
def test_norms_that_are_skipped_by_chance_are_not_counted(tmp_path: Path, seed: int) -> None:
    task: Callable[[], Task] = partial(replace, toy.task(), model=Skipping)
    assert different(audited(*train_alone(tmp_path / "run", task, seed=seed), model="")) == []


def falling(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    losses, metrics = toy.evaluate(model, batch)
    COUNT[0] += 1
    return losses + 1e4 / COUNT[0], metrics


def test_an_evaluation_that_comes_out_otherwise_is_skipped(tmp_path: Path) -> None:
    COUNT[0] = 0
    task: Callable[[], Task] = partial(replace, toy.task(), evaluate=falling)
    report = audited(*train_alone(tmp_path / "run", task), model="")
    assert different(report) == []
    assert report.count("skipped", "evaluation")


class CountingInGroups(torch.optim.SGD):
    """As timm's Lamb: its group counts the steps."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for parameter in group["params"]:
                parameter.grad.div_(group["step"])
        return super().step(closure)


class KeepingLists(torch.optim.SGD):
    """As SOAP: its state has lists."""

    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            seen = self.state[parameter].setdefault("seen", [])
            seen.append(parameter.grad.clone())
            parameter.grad.copy_(torch.stack(seen).mean(0))
        return super().step(closure)


@pytest.mark.parametrize(("kind", "line"), [(CountingInGroups, "'step' in its"), (KeepingLists, "'seen' as list")])
def test_steps_of_optimizers_that_keep_something_elsewhere_are_skipped(
    tmp_path: Path, kind: type[torch.optim.SGD], line: str
) -> None:
    task: Callable[[], Task] = partial(replace, toy.task(), optimizer=partial(kind, lr=0.1))
    report = audited(*train_alone(tmp_path / "run", task), model="")
    assert different(report) == []
    assert report.count("skipped", "step")
    assert all(line in item.line for item in report.items if item.what == "step")
