"""The audit of figures that ranks record of their steps: norms of gradients, and the training metric."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.audit import costs
from bench.audit.audit_input import norms_of, works_of
from bench.audit.documented.rules import left_out_roundings
from bench.audit.repeated.compare import losses_apart
from bench.models import parts
from ddp.core.messages.events import Finished
from ddp.core.settings.steps import StepSettings
from ddp.gradients.average import GradientAverage
from ddp.replica.figures import StepFigures
from ddp.replica.task import Task
from tests.bench.audit.audit_breaks import ADAM, wrapped
from tests.bench.audit.audited import audited, different, train_alone
from tests.bench.audit.test_audit_ranks import overflowing, train_together
from tests.runtime import toy
from tests.runtime.conftest import in_process as in_process
from tests.slow import every, slow


def noted(exchange: Any, self: Any, batch: Any) -> None:
    """Before gradients are averaged."""
    gradients = [p.grad for p in self._state.parameters if p.grad is not None]
    self._optimizer.norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
    exchange(batch)


def slightly_more(step: Any, self: Any, optimizer: Any) -> None:
    known = len(self._norms)
    step(optimizer)
    for number, norm in self._norms[known:]:
        self._norms[known] = number, getattr(optimizer, "norm", 1.001 * norm)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("mode", every(2, ["solo", "nccl_sync", "zero2", "cpu_async"]))
def test_another_norm_than_that_of_the_step_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Of a rank's own gradients; or off by a thousandth."""
    with monkeypatch.context() as patch:
        wrapped(GradientAverage, "exchange", noted)(patch)
        wrapped(StepFigures, "step", slightly_more)(patch)
        made = train_alone(tmp_path, ADAM) if mode == "solo" else train_together(tmp_path, mode, ADAM)
    found = different(audited(*made))
    assert found
    assert all("norm of the gradients" in line for line in found), found


def faint() -> Task:
    """With gradients whose squares are 0 in single precision, as those of a set that is learned in a step."""
    return replace(toy.task(), loss=lambda model, batch: 1e-26 * toy.loss(model, batch))


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("mode", every(2, ["solo", "nccl_sync", "zero2", "cpu_async"]))
def test_a_norm_whose_squares_underflow_is_none_of_the_runs_defects(tmp_path: Path, mode: str) -> None:
    """An easy set of images failed: 0 in the run, 8.3456e-28 recomputed."""
    made = train_alone(tmp_path, faint) if mode == "solo" else train_together(tmp_path, mode, faint)
    assert {norm for each in norms_of(made[1]) for _, norm in each} == {0.0}
    assert different(audited(*made)) == []


def classifying() -> Task:
    return replace(toy.task(), loss=parts.classified, evaluate=parts.accuracy)


def counting(change: Any) -> Any:
    """The function that records the metric, of (samples, right answers) that are changed."""
    record = parts.record_sum

    def broken(name: str, count: int, total: Any, *tensors: Any) -> None:
        samples, factor = change(count)
        record(name, samples, lambda *each: total(*each) * factor, *tensors)

    return broken


@pytest.mark.parametrize(
    ("change", "sign"),
    [
        (lambda count: (count, 1), ""),
        (lambda count: (8, 1), "accuracy was recorded for"),
        (lambda count: (count, 0.98), "training metric of rank 0"),
    ],
)
def test_another_training_metric_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any, sign: str
) -> None:
    """A short batch that counts as a whole one; right answers that are not all counted."""
    with monkeypatch.context() as patch:
        patch.setattr(parts, "record_sum", counting(change))
        made = train_alone(tmp_path, classifying)
    found = different(audited(*made, model="mlp"))
    assert any(sign in line for line in found) if sign else not found, found
    lost = different(audited(*made, model="mlp", planned=False))  # then a rank may count its steps anew
    assert not any("training metric" in line for line in lost)


def sometimes() -> Task:
    """With a layer that half of the passes leave out."""

    class Skipping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.between, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, points: Tensor) -> Tensor:
            state = self.first(points)
            return self.last(self.between(state) if not self.training or float(torch.rand(())) < 0.5 else state)

    return replace(toy.task(optimizer="Adam"), model=Skipping)


@pytest.mark.parametrize("seed", every(2, range(4)))
def test_bytes_are_those_of_the_step_that_was_measured(tmp_path: Path, seed: int) -> None:
    """Others have more gradients, and more of the optimizer's state."""
    job, records = train_alone(tmp_path, sometimes, seed=seed, epochs=1, batch_size=20)  # so few that all are kept
    works = works_of(records)
    assert different(audited(job, records, works=works, whole=True, model="")) == []
    other = replace(works[0], gradient_bytes=works[0].gradient_bytes + 4)
    assert [
        line for line in different(audited(job, records, works=(other,), whole=True, model="")) if "gradient_b" in line
    ]
    other = replace(works[0], optimizer_bytes=works[0].optimizer_bytes + 4)
    assert [
        line for line in different(audited(job, records, works=(other,), whole=True, model="")) if "optimizer_" in line
    ]


@pytest.mark.parametrize(("precision", "found"), [("fp16", False), ("fp32", True)])
def test_an_optimizer_has_its_state_after_the_first_step_that_is_not_skipped(precision: str, found: bool) -> None:
    """Where a scaled loss overflowed in the first step, the second one began without a state and was measured with it."""
    work = SimpleNamespace(norms=[(0, None), (1, 1.0)], gradient_bytes=8, optimizer_bytes=16)
    step = SimpleNamespace(precision=precision)
    order: Any = SimpleNamespace(works=[work], model="", planned=True, resumed=False, step=step)
    bench: Any = SimpleNamespace(gradient_bytes=8, optimizer_bytes=16)
    known = {"gradient_bytes": {(0, 1): (8,)}, "optimizer_bytes": {(0, 1): (0,)}}
    assert bool(list(costs._of_steps(order, bench, [known]))) is found


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("mode", [*slow("zero1", "zero2"), "zero3"])
def test_bytes_of_parts_are_those_of_the_whole(tmp_path: Path, mode: str) -> None:
    job, records = train_together(tmp_path, mode, ADAM)
    works = works_of(records)
    assert different(audited(job, records, works=works)) == []
    for name in ("gradient_bytes", "optimizer_bytes"):
        none = [replace(work, **{name: 0}) for work in works]
        (line,) = different(audited(job, records, works=tuple(none)))
        assert f"{name} of all ranks, each with a part, add up to 0" in line
        more = replace(works[0], **{name: getattr(works[0], name) + 10_000})
        assert different(audited(job, records, works=(more, *works[1:])))


def test_norms_of_a_compiled_step_in_half_precision_agree_to_its_rounding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler leaves out roundings that autocast makes."""
    step = StepSettings(precision="bf16")
    with monkeypatch.context() as patch:
        wrapped(StepFigures, "step", slightly_more)(patch)
        job, records = train_alone(tmp_path, ADAM, step=step)
    assert different(audited(job, records))
    compiled = replace(job, step=replace(step, compile=True))
    assert different(audited(compiled, records)) == []
    for factor, found in ((1.0094, False), (1.05, True)):  # the first was seen of a clean run
        norms = tuple(tuple((at, norm and factor * norm) for at, norm in each) for each in norms_of(records))
        assert bool(different(audited(compiled, records, norms=norms))) is found


@pytest.mark.parametrize(
    ("step", "loss", "found"),
    [
        (StepSettings(precision="bf16", compile=True), 0.225685, False),  # of a clean run on an H100
        (StepSettings(precision="bf16", compile=True), 0.24, True),
        (StepSettings(precision="fp16", compile=True), 0.2275, False),
        (StepSettings(precision="fp16", compile=True), 0.225685, True),
        (StepSettings(precision="bf16"), 0.225685, True),
        (StepSettings(compile=True), 0.225685, True),
    ],
)
def test_losses_of_a_compiled_step_in_half_precision_agree_to_its_rounding(
    step: StepSettings, loss: float, found: bool
) -> None:
    again = 0.227389
    assert bool(losses_apart([loss], [again], "", left_out_roundings(step), lambda number: [again])) is found


@pytest.mark.parametrize(("off", "found"), [(3e-7, False), (3e-5, True)])
def test_a_loss_that_a_rounding_leaves_as_it_is_by_chance_is_tried_again(off: float, found: bool) -> None:
    """Of 8 samples of a clean run, compiled: a small difference of large logits."""
    again, asked = 0.00412116, []

    def shaken(number: int) -> list[float]:
        asked.append(number)
        return [again + 2e-7 * (number == 1)]

    assert bool(losses_apart([again + off], [again], "", 0.0, shaken)) is found
    assert asked == [0, 1, 2, 3] if found else [0, 1]


@pytest.mark.parametrize(("factor", "found"), [(1.0094, False), (1.05, True)])  # the first was seen of a clean run
def test_changes_of_a_compiled_step_in_half_precision_agree_to_its_rounding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: float, found: bool
) -> None:
    def scaled(step: Any, self: Any, *about: Any) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)
        return step(*about)

    step = StepSettings(precision="bf16")
    with monkeypatch.context() as patch:
        wrapped(torch.optim.SGD, "step", scaled)(patch)
        job, records = train_alone(tmp_path, toy.task, step=step)
    assert different(audited(job, records))
    assert bool(different(audited(replace(job, step=replace(step, compile=True)), records))) is found


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("mode", every(2, ["solo", "nccl_sync", "zero2", "cpu_async"]))
def test_norms_in_half_precision_are_those_without_the_losses_factor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Behind steps that overflowed, which have no norm."""
    fields = {"step": StepSettings(precision="fp16")}
    with monkeypatch.context() as patch:
        wrapped(StepFigures, "step", slightly_more)(patch)
        train = train_alone if mode == "solo" else partial(train_together, mode=mode)
        made = train(tmp_path, task=overflowing, **fields)
    found = different(audited(*made))
    assert found
    assert all("norm of the gradients" in line for line in found), found


class Branching(nn.Module):
    """A model of which each pass leaves out a layer by chance."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.other = toy.task().model(), nn.Linear(6, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.first(inputs)
        return out + self.other(inputs) if self.training and float(torch.rand(())) < 0.5 else out


def test_operations_that_hang_on_chance_are_not_held_against_others(tmp_path: Path) -> None:
    job, records = train_alone(tmp_path, lambda: replace(toy.task(), model=Branching), epochs=1, profile_steps=1)
    counted = [record.work for record in records if isinstance(record, Finished)]
    assert counted[0] is not None
    for more in (0.0, 7.0):  # whatever was counted
        works = (replace(counted[0], flop_per_sample=(counted[0].flop_per_sample or 0.0) + more),)
        found = different(audited(job, records, model="", works=works))
        assert not any("flop_per_sample" in line for line in found), found


def test_what_a_pass_keeps_is_counted_again(tmp_path: Path) -> None:
    """A defect that counts parameters with it shows."""
    job, records = train_alone(tmp_path, toy.task, epochs=1, profile_steps=1)
    (work,) = works_of(records)
    parameters = {"whole": True, "model": "toy"}
    assert work.activation_bytes
    assert different(audited(job, records, **parameters)) == []
    counted = (replace(work, activation_bytes=work.activation_bytes + work.parameter_bytes),)
    (line,) = different(audited(job, records, works=counted, **parameters))
    assert "activation_bytes of rank 0 is" in line
    assert different(audited(job, records, works=counted, resumed=True, **parameters)) == []
