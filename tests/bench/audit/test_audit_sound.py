"""Runs of a user's own code that are sound and were called wrong: padded texts, merged weights, shared gradients, a loss
that remembers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.audit.audit_input import works_of
from ddp.core.settings.steps import StepSettings
from ddp.data import as_source
from ddp.data.dataset import MapSource, collated
from ddp.replica.task import Task
from tests.bench.audit.audit_breaks import wrapped
from tests.bench.audit.audited import audited, different, train_alone
from tests.bench.audit.test_audit_own import Together, first_alone
from tests.bench.audit.test_audit_ranks import train_together
from tests.runtime import toy
from tests.runtime.conftest import in_process as in_process
from tests.runtime.engines.test_laws import Merging, MergingInside
from tests.slow import every


def padded(samples: list[Any]) -> Any:
    texts, labels = zip(*samples, strict=True)
    return nn.utils.rnn.pad_sequence(list(texts), batch_first=True), torch.tensor(labels)


class Reader(nn.Module):
    """Reads texts that are padded with 0."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(20, 4, padding_idx=0), nn.Linear(4, 2)

    def forward(self, texts: Tensor) -> Tensor:
        return torch.as_tensor(self.head(self.table(texts)).mean(1))


def texts() -> Task:
    data = collated(as_source([(torch.arange(1, 2 + i * 7 % 17), i % 2) for i in range(200)]), padded)
    return replace(toy.task(), model=Reader, train_data=lambda: data, eval_data=lambda: data)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("mode", every(2, ["nccl_sync", "nccl_cadence"]))
def test_texts_that_are_padded_to_the_longest_of_a_batch_are_audited(tmp_path: Path, mode: str) -> None:
    """Each batch has its own length, and a rank begins with another batch than the audit."""
    job, records = train_together(tmp_path, mode, texts)
    assert len({work.tokens for work in works_of(records)}) > 1
    report = audited(job, records, model="")
    assert different(report) == []
    assert report.count("equal", "step") >= 4
    works = tuple(replace(work, parameter_bytes=1) for work in works_of(records))
    assert different(audited(job, records, model="", works=works, whole=True))


def test_other_costs_of_equal_batches_are_named(tmp_path: Path) -> None:
    job, records = train_alone(tmp_path, toy.task, profile_steps=2)
    (work,) = works_of(records)
    assert work.flop_per_sample
    for change in ({"tokens": 3}, {"flop_per_sample": work.flop_per_sample * 1.01}):
        found = different(audited(job, records, model="", works=(replace(work, **change),)))
        assert any(next(iter(change)) in line for line in found)


class Added(nn.Module):
    """Adds a product of weights to a weight, whatever the number of samples."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = (nn.Parameter(torch.randn(*of)) for of in ((6, 3), (3, 6), (6, 2)))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ (self.first @ self.second) @ self.head


def test_work_that_samples_share_is_counted_on_other_batches(tmp_path: Path) -> None:
    """A rank counts on its first micro-batch, the audit counted on a whole batch."""
    fields: dict[str, Any] = {"profile_steps": 2, "step": StepSettings(accumulate=4), "epochs": 1}
    report = audited(*train_alone(tmp_path, lambda: replace(toy.task(), model=Added), **fields), model="")
    assert different(report) == []
    assert report.count("equal", "cost") == 1


@pytest.mark.parametrize("kind", [Merging, MergingInside])
def test_layers_that_merge_their_weights_to_evaluate_are_audited(tmp_path: Path, kind: Any) -> None:
    """From the second evaluation on they were evaluated, and trained, as they were merged before."""

    def task() -> Task:
        return replace(toy.task(), model=lambda: nn.Sequential(kind(6, 4), kind(4, 2)))

    report = audited(*train_alone(tmp_path, task), model="")
    assert different(report) == []
    assert report.count("equal", "evaluation") == 3
    assert report.count("equal", "step") >= 4


def test_gradients_that_share_memory_have_the_bytes_that_they_take(tmp_path: Path) -> None:
    job, records = train_alone(tmp_path, toy.summed)
    report = audited(job, records, model="", whole=True)
    assert different(report) == []
    (work,) = works_of(records)
    other = replace(work, gradient_bytes=work.gradient_bytes - 4)
    assert any(
        "gradient_bytes" in line for line in different(audited(job, records, model="", whole=True, works=(other,)))
    )


class Relative:
    """The loss as a part of the first one."""

    def __init__(self) -> None:
        self.first: float | None = None

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        loss = toy.loss(model, batch)
        self.first = float(loss.detach()) if self.first is None else self.first
        return loss / self.first


class Counting:
    """A loss that notes its calls, and has no use for them."""

    calls = 0

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        self.calls += 1
        return toy.loss(model, batch)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("mode", every(2, ["nccl_sync", "nccl_cadence"]))
def test_a_loss_that_remembers_its_first_call_is_not_called_wrong(tmp_path: Path, mode: str) -> None:
    """Each rank remembers its own, and the audit has one for all."""

    def task() -> Task:
        return replace(toy.task(), loss=Relative())

    report = audited(*train_together(tmp_path, mode, task), model="")
    assert different(report) == []
    assert report.count("skipped", "step")


def test_a_loss_that_notes_its_calls_is_held_to_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def task() -> Task:
        return replace(toy.task(), loss=Counting(), train_data=lambda: as_source(Together()))

    assert different(audited(*train_alone(tmp_path / "whole", task), model="")) == []
    wrapped(MapSource, "_read", first_alone)(monkeypatch)
    assert any("loss" in line for line in different(audited(*train_alone(tmp_path / "one", task), model="")))
