"""The audit of rows of steps: sound ones are equal, and what happens now and then is named."""

from __future__ import annotations

from functools import partial
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.audit.documented.rules import total_of
from bench.audit.kept_files import read
from bench.audit.repeated import stretches
from bench.audit.repeated.compare import StepDifference
from bench.audit.repeated.rows import redo_all
from bench.results.audit_file import AuditReport
from ddp.core.messages.events import Finished
from ddp.core.settings.faults import parse
from ddp.core.settings.steps import StepSettings
from ddp.replica.evidence import step_draws
from ddp.replica.replica import Replica
from ddp.replica.task import Job
from tests.bench.audit.audit_breaks import ADAM, wrapped
from tests.bench.audit.audited import audited, different, train_alone
from tests.bench.audit.test_audit_ranks import train_together
from tests.runtime import toy
from tests.runtime.conftest import in_process as in_process
from tests.slow import slow


@pytest.fixture
def long_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the steps lies in rows."""
    monkeypatch.setattr(step_draws, "ROW", 4)


def in_rows(job: Job, records: list[Any]) -> list[int]:
    """How many steps each row has that was kept."""
    files = [file for record in records if isinstance(record, Finished) for file in record.kept]
    return [len(step.row) for step in read(job.scratch, files).steps if step.then]


@pytest.mark.usefixtures("in_process", "long_rows")
@pytest.mark.parametrize("mode", ["nccl_sync", "cpu_async", *slow("zero3", "solo", "nccl_cadence", "zero1", "zero2")])
def test_rows_of_steps_are_done_again(tmp_path: Path, mode: str) -> None:
    made = train_alone(tmp_path, ADAM) if mode == "solo" else train_together(tmp_path, mode, ADAM, epochs=4)
    rows = in_rows(*made)
    assert sum(rows) >= 6, rows
    report = audited(*made)
    assert different(report) == []
    assert [str(item) for item in report.items if item.outcome == "skipped"] == []


def now_and_then(step: Any, self: Any, *batch: Any) -> Any:
    self.count = getattr(self, "count", 0) + 1
    done = step(*batch)
    if self.count % 6 == 0:
        self.optimizer.state.clear()
    return done


@pytest.mark.usefixtures("in_process", "long_rows")
@pytest.mark.parametrize("mode", ["solo", "nccl_sync", *slow("zero1")])
def test_what_happens_now_and_then_is_in_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """No step that is kept alone is one of those, but the row has one."""
    monkeypatch.setattr(step_draws.StepDraws, "has", lambda *about: False)
    with monkeypatch.context() as patch:
        wrapped(Replica, "step", now_and_then)(patch)
        made = train_alone(tmp_path, ADAM) if mode == "solo" else train_together(tmp_path, mode, ADAM, epochs=6)
    assert max(in_rows(*made)) >= 6
    found = different(audited(*made))
    assert any("steps from this one on: loss" in line for line in found), found


def doubled_once(step: Any, self: Any, *batch: Any) -> Any:
    """In one step of the run, on all ranks."""
    self.count = getattr(self, "count", 0) + 1
    for group in self.optimizer.param_groups:
        group["weight_decay"] = 0.1 if self.count == ONCE else 0.0
    return step(*batch)


ONCE = 20


LOSSY: dict[str, Any] = {"faults": (parse("2@5:raise"),), "restarts": 0, "deadline_s": 5.0}
BF16: dict[str, Any] = {"step": StepSettings(precision="bf16")}


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(("seen", "found"), [((1,), False), ((1, 2, 3, 4), True)])
def test_a_state_differs_if_no_perturbation_explains_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: tuple[int, ...], found: bool
) -> None:
    """In a clean run of zero3, one of 42 samples crossed a ReLU's kink: the first perturbation had not moved it."""
    seeds = list[int]()

    def repeated(*given: Any, seed: int = 0, **more: Any) -> Any:
        seeds.append(seed)
        return redo_all(*given, **more, **({"seed": seed} if seed else {}))

    def compared(*_: Any) -> tuple[list[StepDifference], float]:
        return [StepDifference("weight", "1", "2", 3.0)] if seeds[-1] in seen else [], 3.0

    monkeypatch.setattr(stretches, "redo_all", repeated)
    monkeypatch.setattr(stretches, "identical", lambda *_: False)
    monkeypatch.setattr(stretches, "states_apart", compared)
    run = train_alone(tmp_path, partial(toy.task, lr=0.01, optimizer="Adam"), epochs=4)
    assert bool(different(audited(*run, model="toy"))) is found
    assert max(seeds) == (4 if found else 2)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("mode", "fields", "changes"),
    [
        ("solo", {}, {}),
        ("solo", {}, {"resumed": True}),
        ("nccl_sync", LOSSY, {"planned": False}),
        ("nccl_sync", BF16, {}),
        *slow(
            ("nccl_sync", {}, {}),
            ("zero1", {}, {}),
            ("zero2", BF16, {}),
            ("nccl_sync", LOSSY | BF16, {"planned": False}),
        ),
    ],
)
def test_what_happens_once_is_between_states_that_were_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, fields: dict[str, Any], changes: dict[str, Any]
) -> None:
    """No step is kept about that one. The budget is of no matter here: a busy machine would have less of it."""
    monkeypatch.setattr(stretches, "BUDGET_S", 1000.0)
    task = partial(toy.task, lr=0.01, optimizer="Adam")

    def made(folder: Path, **more: Any) -> AuditReport:
        folder.mkdir()
        alone = mode == "solo"
        run = train_alone(folder, task, epochs=4) if alone else train_together(folder, mode, task, epochs=12, **fields)
        return audited(*run, model="toy", **changes | more)

    whole = made(tmp_path / "whole")
    assert different(whole) == []
    assert [item for item in whole.items if item.what == "chain" and item.largest is not None]
    with monkeypatch.context() as patch:
        has = step_draws.StepDraws.has
        patch.setattr(
            step_draws.StepDraws,
            "has",
            lambda self, first, stop, step, *more: (
                step not in range(ONCE - 5, ONCE + 5) and has(self, first, stop, step, *more)
            ),
        )
        wrapped(Replica, "step", doubled_once)(patch)
        found = different(made(tmp_path / "once"))
    assert found
    assert all("recomputed from the state before them" in line for line in found), found


def test_what_lies_on_both_sides_of_a_resumption_is_not_repeated(tmp_path: Path) -> None:
    made = train_alone(tmp_path, partial(toy.task, lr=0.01, optimizer="Adam"), epochs=4)
    breaks = tuple(float(place) for place in range(4 * toy.SAMPLES))
    items = audited(*made, model="toy", resumed=True, breaks=breaks).items
    assert not [item for item in items if item.what == "chain" and item.largest is not None]


def test_another_order_of_ranks_changes_no_more_than_is_measured() -> None:
    """Values of half precision of three ranks, many of which cancel out in one order or another."""
    values = torch.randint(-8, 9, (3, 10_000), generator=torch.Generator().manual_seed(1)) * 2.0**-9
    parts = [each * (1.0 / 3.0) for each in values]
    total, shaken = total_of(parts, shaken=False), total_of(parts, shaken=True)
    small = values.sum(0) == 0.0
    assert torch.equal(total[~small], shaken[~small])
    off = 0
    for order in permutations(parts):
        other = total_of(order, shaken=False)[small]
        off += int((other != total[small]).sum())
        assert bool(((other - total[small]).abs() <= (shaken - total)[small].abs()).all())
    assert off


def test_whether_a_loss_is_drawn_is_seen_where_the_model_is() -> None:
    """On a GPU, say; `meta` is a device, too."""
    there = torch.device("meta")
    seen: list[torch.device] = []

    def loss(model: nn.Module, batch: Any) -> Tensor:
        seen.extend(each.device for each in batch)
        return torch.tensor(1.0)

    bench = SimpleNamespace(
        batch=lambda start, stop: (torch.ones(2), torch.zeros(2)),
        rules=SimpleNamespace(batch_size=2, samples=4),
        device=there,
        model=nn.Linear(1, 1),
        task=SimpleNamespace(loss=loss),
    )
    assert not stretches.draws(bench)  # type: ignore[arg-type]
    assert set(seen) == {there}
