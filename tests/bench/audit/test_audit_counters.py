"""The audit's count of steps: a pass in another mode shows though its step is not kept."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from bench.audit.audit_input import StepReport
from bench.audit.counters import scales, updates
from bench.audit.kept_files import read
from ddp.backends import allreduce
from ddp.core.messages.events import Finished, Progress
from ddp.core.settings.steps import StepSettings
from ddp.replica.optim.loss_scale import LossScale
from ddp.replica.optim.optimizers import Several
from ddp.replica.replica import Replica
from ddp.replica.task import Task
from tests.bench.audit.audit_breaks import ADAM, wrapped
from tests.bench.audit.audited import audited, different, train_alone
from tests.bench.audit.test_audit_ranks import train_together
from tests.runtime import toy
from tests.runtime.conftest import in_process as in_process
from tests.slow import few

ALONE = 20
"""A step that is not kept."""


def in_evaluation(step: Any, self: Any, *batch: Any) -> Any:
    self.count = getattr(self, "count", -1) + 1
    self.model.train(self.count != ALONE)
    done = step(*batch)
    self.model.train()
    return done


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("mode", ["solo", "nccl_sync"])
def test_a_pass_that_nobody_keeps_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    with monkeypatch.context() as patch:
        wrapped(Replica, "step", in_evaluation)(patch)
        job, records = train_alone(tmp_path, ADAM) if mode == "solo" else train_together(tmp_path, mode, ADAM, epochs=6)
    files = [file for record in records if isinstance(record, Finished) for file in record.kept]
    kept = {step.step for step in read(job.scratch, files).steps}
    assert min(kept) < ALONE < max(kept)
    assert ALONE not in kept, kept
    found = different(audited(job, records))
    assert any("num_batches_tracked counted" in line for line in found), found


@pytest.mark.usefixtures("in_process")
def test_counters_that_an_average_adds_up_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(allreduce, "MAX", allreduce.SUM)
        job, records = train_together(tmp_path, "nccl_cadence", ADAM, epochs=6)
    found = different(audited(job, records))
    assert any("num_batches_tracked counted" in line for line in found), found


def stepped_twice(step: Any, self: Any, *batch: Any) -> Any:
    self.count = getattr(self, "count", -1) + 1
    done = step(*batch)
    if self.count == ALONE:
        self.optimizer.step()
    return done


def left_out(step: Any, self: Any, *batch: Any) -> Any:
    self.count = getattr(self, "count", -1) + 1
    own, self.passes.ready = self.passes.ready, (lambda *about: False) if self.count == ALONE else self.passes.ready
    done = step(*batch)
    self.passes.ready = own
    return done


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(("mode", "case"), few(["nccl_cadence", "cpu_async"], [(stepped_twice, 1), (left_out, -1)]))
def test_a_step_that_nobody_keeps_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, case: tuple[Any, int]
) -> None:
    broken, sign = case
    for attempt in range(
        5
    ):  # which steps are kept follows the speeds: one kept on all ranks is done again, not counted
        (tmp_path / str(attempt)).mkdir()
        with monkeypatch.context() as patch:
            wrapped(Replica, "step", broken)(patch)
            job, records = train_together(tmp_path / str(attempt), mode, ADAM, epochs=12)
        found = [line for line in different(audited(job, records)) if "the optimizer's step counted" in line]
        if found:
            break
    assert found, "a step more or less on each rank"
    counted, between = (int(part.split()[0]) for part in found[0].partition("counted ")[2].split(" in "))
    assert counted == between + sign, found


class Quieter(torch.optim.SGD):
    """An optimizer that does something of its own around PyTorch's."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        return super().step(closure)


def test_an_optimizer_that_is_made_from_pytorchs_counts_once(tmp_path: Path) -> None:
    job, records = train_alone(tmp_path, lambda: replace(toy.task(), optimizer=partial(Quieter, lr=0.1)))
    report = audited(job, records)
    assert different(report) == []
    (end,) = [record for record in records if isinstance(record, Finished)]
    assert end.work is not None
    assert end.work.updates == sum(record.steps for record in records if isinstance(record, Progress))


def test_after_a_resumption_the_steps_since_are_counted() -> None:
    """A rank that left out steps from there on was not noticed, if its optimizer counts none."""

    def reported(first: int, last: int, resumes: int) -> StepReport:
        return StepReport(0, first, last, 0, 8, 1.0, 0.1, resumes=resumes)

    def told(made: int, **changes: Any) -> list[str]:
        reports = (reported(0, 40, 0), reported(30, 50, 1), reported(50, 80, 1))
        about = {"unbroken": True, "step": StepSettings(), "one_process": False, "world_size": 1, "reports": reports}
        order = SimpleNamespace(**about | {"works": (SimpleNamespace(updates=made),)} | changes)
        return [item.line for item in updates(cast(Any, order))]

    assert told(50) == [""]
    assert told(48) == ["50 steps were reported, its optimizer made 48"]
    assert told(48, unbroken=False) == []
    assert told(48, reports=()) == []


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(("breaks", "more"), [(stepped_twice, 1), (left_out, -1)])
@pytest.mark.parametrize("mode", ["solo", "nccl_cadence", "zero1"])
def test_steps_of_an_optimizer_without_a_counter_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, breaks: Any, more: int
) -> None:
    """SGD keeps nothing that would tell."""
    with monkeypatch.context() as patch:
        wrapped(Replica, "step", breaks)(patch)
        made = train_alone(tmp_path, toy.task) if mode == "solo" else train_together(tmp_path, mode, toy.task)
    found = different(audited(*made))
    counts = [re.search(r"(\d+) steps were reported, its optimizer made (\d+)", line) for line in found]
    assert {int(count[2]) - int(count[1]) for count in counts if count} == {more}, found


def two_optimizers() -> Task:
    def made(parameters: list[torch.nn.Parameter]) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(parameters[:2], lr=0.1), torch.optim.SGD(parameters[2:], lr=0.1)]

    return replace(toy.task(), optimizer=made)


def second_left_out(step: Any, self: Any, *more: Any) -> None:
    self.count = getattr(self, "count", -1) + 1
    for part in self.parts[: 1 if self.count == ALONE else None]:
        part.step()


@pytest.mark.parametrize("broken", [False, True])
def test_steps_of_each_of_several_optimizers_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    with monkeypatch.context() as patch:
        if broken:
            wrapped(Several, "step", second_left_out)(patch)
        made = train_alone(tmp_path / "run", two_optimizers)
    found = [line for line in different(audited(*made)) if "its optimizer made" in line]
    assert bool(found) is broken


FP16 = StepSettings(precision="fp16")


def huge() -> Task:
    """Whose gradients overflow in half precision until the factor was halved a few times."""
    return replace(toy.task(), loss=lambda model, batch: toy.loss(model, batch) * 100.0)


def never_halved(follow: Any, self: Any, finite: bool) -> bool:
    value, done = self.value, follow(finite)
    self.value = value if value <= 256.0 else self.value  # else no step is made at all
    return bool(done)


def halved_at_once(follow: Any, self: Any, finite: bool) -> bool:
    done = follow(finite)
    self.value /= 2
    return bool(done)


def counted_from_0(follow: Any, self: Any, finite: bool) -> bool:
    done = follow(finite)
    self.steps = 0
    return bool(done)


@pytest.mark.parametrize("broken", [None, never_halved, halved_at_once, counted_from_0])
def test_a_step_leaves_the_factor_of_half_precision_as_the_audit_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: Any
) -> None:
    """An overflow that did not halve it passed, though no step was made any more; so did a factor that shrank, or never
    grew again."""
    with monkeypatch.context() as patch:
        if broken is not None:
            wrapped(LossScale, "follow", broken)(patch)
        made = train_alone(tmp_path / "run", huge, step=FP16)
    report = audited(*made)
    assert report.count("equal", "step") >= 4
    assert any("the loss scale before it is" in line for line in different(report)) is (broken is not None)
    assert different(report) == [] or broken is not None


@pytest.mark.parametrize(
    ("scale", "steps", "wrong"),
    [
        ((2.0**17, 5), 1_900, True),
        ((2.0**17, 5), 2_100, False),
        ((2.0**16, 1_999), 2_100, False),
        ((2.0**16, 2_000), 2_100, True),
    ],
)
def test_the_factor_of_half_precision_grows_when_it_may(scale: tuple[float, int], steps: int, wrong: bool) -> None:
    reports = [SimpleNamespace(first=0, last=steps)]
    order = SimpleNamespace(step=FP16, planned=True, resumed=False, reports=reports, one_process=True, world_size=2)
    kept = SimpleNamespace(scale=scale, rank=0, epoch=0, step=900, file="0.state")
    assert bool(list(scales(cast(Any, order), cast(Any, [kept]), {}))) is wrong
