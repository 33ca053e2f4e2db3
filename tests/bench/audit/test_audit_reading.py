"""What the audit reads again, and what it leaves out: samples that a user's own code draws, ranks that did no step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from bench.audit.costs import _apart
from bench.audit.documented.reading import SAMPLES, TrainingData, repeatable, unknowable
from bench.audit.repeated.evaluation import added_up
from bench.results import audit_file
from ddp.core.messages.event_parts import StepWork
from ddp.core.settings.steps import StepSettings
from ddp.data import as_source
from ddp.data.augment import crop_and_flip
from tests.bench.audit.audit_breaks import images
from tests.bench.audit.audited import audited, different, train_alone
from tests.bench.audit.test_audit_ranks import POLICY_OF, train_together
from tests.bench.streams import make_metrics, make_spec
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


def test_what_follows_from_no_seed_is_not_known() -> None:
    def why(**changes: Any) -> str:
        task = replace(toy.task(), **changes)
        return unknowable(task, TrainingData(task, 3))

    numbers = count()
    assert why() == ""
    assert why(augment=crop_and_flip(2), train_data=images) == ""
    assert why(sampler=lambda epoch: torch.randperm(4)) == ""
    assert "at each reading" in why(train_data=Noisy)
    assert "another order" in why(sampler=lambda epoch: [next(numbers) % toy.SAMPLES])
    assert "augment" in why(augment=lambda batch, draws: (batch[0] + float(np.random.rand()), batch[1]))
    assert "epoch_callback" in why(epoch_callback=lambda epoch, worker: None)
    assert repeatable(Steady())
    assert not repeatable(Noisy())


class Seldom(Dataset[Any]):
    """Draws from NumPy for one sample alone."""

    def __len__(self) -> int:
        return toy.SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        points, labels = toy.data()
        return points[index] + (float(np.random.rand()) if index >= SAMPLES else 0.0), labels[index]


def test_a_step_is_not_judged_on_samples_that_do_not_come_again(tmp_path: Path) -> None:
    report = audited(
        *train_alone(tmp_path, lambda: replace(toy.task(), train_data=lambda: as_source(Seldom()))), model=""
    )
    assert different(report) == []
    assert report.count("skipped", "step")


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


@pytest.mark.parametrize(
    ("loss", "metric", "line"),
    [
        (3.0, 4.0, ""),
        (3.5, 4.0, "sum of the losses: 3.5 in the run, its batches add up to 3"),
        (3.0, 5.0, "sum of the metrics: 5 in the run, its batches add up to 4"),
        (None, 4.0, ""),
    ],
)
def test_batches_of_an_evaluation_add_up_to_what_was_reported(
    loss: float | None, metric: float | None, line: str
) -> None:
    batches = ((0, 10, 1.0, 3.0), (10, 15, 2.0, 1.0))
    assert added_up(batches, (loss, metric)) == line
    lost = (*batches, (15, 20, None, 0.0))  # one that is not finite
    assert added_up(lost, (9.0, 4.0)) == ""
    assert added_up(lost, (9.0, 9.0))


def test_a_key_said_twice_in_a_report_is_refused(tmp_path: Path) -> None:
    """Its digest is of the last value alone."""
    report = audit_file.AuditReport(run_id="a", seconds=1.0, kept=[], items=[])
    audit_file.write_report(tmp_path, report, make_metrics(make_spec("solo")))
    assert audit_file.read(tmp_path).run_id == "a"
    path = tmp_path / audit_file.AUDIT
    path.write_text(path.read_text().replace("{", '{"run_id": "b",', 1))
    with pytest.raises(ValueError, match=r"audit.json: 'run_id' is said twice"):
        audit_file.read(tmp_path)
