"""The audit of what users' models leave by `record_scalar`: sums and calls, in the reports of steps that are done again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.audit.repeated.step_scalars import Collected, Totals
from ddp import record_scalar
from ddp.replica.scalars import Scalars, record_sum
from ddp.replica.task import Task
from tests.bench.audit.audit_breaks import wrapped
from tests.bench.audit.audited import audited, different, train_alone
from tests.bench.audit.test_audit_ranks import train_together
from tests.runtime import toy
from tests.runtime.conftest import in_process as in_process

COUNT = [0]


def norm(model: nn.Module, batch: Any) -> Tensor:
    loss = toy.loss(model, batch)
    record_scalar("size", next(model.parameters()).detach().norm())
    record_sum("loss", len(batch[0]), lambda losses: losses.sum(), (loss.detach() * len(batch[0])).view(1))
    return loss


def twice_counted(begin: Any, self: Scalars) -> None:
    self._step.extend(self._step[:1])
    begin()


def once_more(later: Any, self: Any, name: str, count: int, total: Any, tensors: Any) -> None:
    later(name, count + 1, total, tensors)


BROKEN = {
    "'size' of rank": wrapped(Scalars, "begin", twice_counted),
    "'loss' of rank": wrapped(Scalars, "add_later", once_more),
}


def recorded(loss: Callable[..., Tensor]) -> Callable[[], Task]:
    return lambda: replace(toy.task(), loss=loss)


@pytest.mark.parametrize("line", BROKEN)
def test_what_steps_record_is_added_up_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    report = audited(*train_alone(tmp_path / "whole", recorded(norm)), model="")
    assert different(report) == []
    with monkeypatch.context() as patch:
        BROKEN[line](patch)
        made = train_alone(tmp_path / "broken", recorded(norm))
    found = different(audited(*made, model=""))
    assert found
    assert all(line in each for each in found), found


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("mode", ["nccl_sync", "cpu_async"])
def test_of_each_rank(tmp_path: Path, mode: str) -> None:
    assert different(audited(*train_together(tmp_path, mode, recorded(norm)), model="")) == []


def seconds(model: nn.Module, batch: Any) -> Tensor:
    record_scalar("seconds", time.monotonic())
    return toy.loss(model, batch)


def now_and_then(model: nn.Module, batch: Any) -> Tensor:
    COUNT[0] += 1
    record_scalar("steps", COUNT[0])
    if COUNT[0] % 10 == 0:
        record_scalar("tenth", 1.0)
    return toy.loss(model, batch)


@pytest.mark.parametrize("loss", [seconds, now_and_then])
def test_what_comes_out_otherwise_each_time_is_no_defect(tmp_path: Path, loss: Callable[..., Tensor]) -> None:
    report = audited(*train_alone(tmp_path / "run", recorded(loss)), model="")
    assert different(report) == []
    assert report.count("equal", "step")


def test_a_recorded_loss_makes_torch_warn_of_nothing(recwarn: pytest.WarningsRecorder) -> None:
    """Users saw its warning after each audited run."""
    totals: Totals = {}
    with Collected(totals):
        record_scalar("loss", 2.0 * torch.ones((), requires_grad=True))
    assert totals == {"loss": (2.0, 1)}
    assert not list(recwarn)
