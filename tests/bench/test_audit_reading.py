"""What the audit reads again, and what it leaves out: samples that a user's own code draws, ranks that did no step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from bench.audit.costs import _apart
from bench.audit.reading import repeatable, unknowable
from ddp.core.event_parts import StepWork
from ddp.core.step_settings import StepSettings
from ddp.data.augment import crop_and_flip
from ddp.data.source import TensorSource
from ddp.replica.task import Task
from tests.bench.audited import audited, different
from tests.bench.test_audit_ranks import POLICY_OF, train_together
from tests.runtime import toy
from tests.runtime.conftest import in_process as in_process


class Noisy:
    """Samples that differ at each reading, in a dictionary."""

    def __len__(self) -> int:
        return 8

    def batch(self, indices: Tensor) -> dict[str, Any]:
        return {"values": torch.randn(len(indices)), "texts": ["one"] * len(indices)}


class Steady(Noisy):
    def batch(self, indices: Tensor) -> dict[str, Any]:
        return {"values": (indices / 0, [indices, 1.0]), "texts": ["one"] * len(indices)}


def test_what_own_code_draws_is_not_known() -> None:
    task, source = toy.task(), TensorSource(torch.rand(4, 2, generator=torch.Generator().manual_seed(1)))
    shifts = replace(task, augment=crop_and_flip(4))
    assert not any(unknowable(task, source, augment, own) for augment in (False, True) for own in (False, True))
    assert not any(unknowable(shifts, source, *each) for each in ((True, True), (True, False), (False, False)))
    assert "augmentation" in unknowable(shifts, source, False, True)
    assert "augmentation" in unknowable(replace(task, augment=crop_and_flip(2)), source, True, True)
    assert "augmentation" in unknowable(replace(task, augment=lambda batch, draws: batch), source, True, False)
    assert "sampler" in unknowable(replace(task, sampler=lambda epoch: range(4)), source, False, False)
    assert "at each reading" in unknowable(task, Noisy(), False, False)
    assert repeatable(Steady())
    assert not repeatable(Noisy())


def backwards(epoch: int) -> Tensor:
    return torch.arange(toy.SAMPLES).flip(0)


def sampled() -> Task:
    return replace(toy.task(), sampler=backwards)


def test_a_run_in_the_order_of_an_own_sampler_is_audited_but_for_its_steps(
    tmp_path: Path, in_process: Callable[[], None]
) -> None:
    report = audited(*train_together(tmp_path, "nccl_sync", sampled))
    assert different(report) == []
    assert report.count("equal", "evaluation")
    assert report.count("skipped", "step")
    assert not report.count("equal", "step")


@pytest.mark.parametrize("backend", ["nccl", "torch_ddp"])
def test_uneven_parts_of_a_step_in_half_precision(
    tmp_path: Path, in_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """PyTorch's modules weigh the loss, others the gradients: in half precision that rounds otherwise."""
    monkeypatch.setitem(POLICY_OF, backend, ("sync", backend))
    half = StepSettings(precision="bf16")
    job, records = train_together(tmp_path, backend, partial(toy.task, samples=67), batch_size=32, step=half)
    report = audited(job, records, own_buffers=backend == "torch_ddp", norms=())
    assert different(report) == []
    assert report.count("equal", "step")


def test_a_rank_that_came_back_and_did_no_step_has_nothing_to_measure() -> None:
    works = (StepWork(((0, 1.0), (1, 1.0)), 40, 40, 80, tokens=0), StepWork(()))
    order = cast("Any", SimpleNamespace(works=works))
    assert not list(_apart(order, {"parameter_bytes": 40, "tokens": 0}))
    assert len(list(_apart(order, {"parameter_bytes": 44}))) == 1
