"""The audit of several ranks: steps together are done again, and what breaks between ranks is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bench.audit.kept_files import read
from ddp.backends import snapshot
from ddp.core.messages.events import Finished, Progress
from ddp.core.policies import POLICIES
from ddp.core.settings.steps import StepSettings
from ddp.engine import elche
from ddp.gradients.average import GradientAverage
from ddp.graph import engine as graph_engine
from ddp.replica.evidence.keeper import StepKeeper
from ddp.replica.replica import Replica
from ddp.replica.task import Job, Task
from tests.bench.audit.audit_breaks import ADAM, Break, shifted, twice, wrapped
from tests.bench.audit.audited import audited, different, evaluations
from tests.runtime import toy
from tests.runtime.averaging import test_flat, test_precision
from tests.runtime.conftest import in_process as in_process
from tests.slow import every
from tests.spread import spread

POLICY_OF = {"graph_sync": ("sync", "nccl"), "graph_cadence": ("cadence", "nccl"), "nccl_cadence": ("cadence", "nccl")}

POLICY_OF |= {"cpu_async": ("async", "cpu"), "cpu_sync": ("sync", "cpu"), "nccl_sync": ("sync", "nccl")}

POLICY_OF |= {name: ("sync", name) for name in ("zero1", "zero2", "zero3")}


def train_together(folder: Path, mode: str, task: Callable[[], Task], **fields: Any) -> tuple[Job, list[Any]]:
    """A job on several ranks in this process, and its records."""
    policy, backend = POLICY_OF[mode]
    defaults: dict[str, Any] = {"epochs": 3, "batch_size": 8, "seed": 3, "world_size": 3, "audit": "w3-s3-test"}
    defaults |= {"policy": POLICIES[policy](**toy.short_windows(policy)), "backend": backend}
    job = Job(task=task, scratch=folder, **(defaults | fields))
    records: list[Any] = []
    engine = graph_engine if mode.startswith("graph") else elche
    engine.run(job, lambda record, at: records.append(record))
    return job, records


def found_broken(monkeypatch: pytest.MonkeyPatch, folder: Path, mode: str, breaks: Break, **fields: Any) -> list[str]:
    """What differs in a job on several ranks that something breaks while it trains."""
    with monkeypatch.context() as patch:
        breaks(patch)
        job, records = train_together(folder, mode, ADAM, **fields)
    return different(audited(job, records, planned=False))


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("mode", every(2, POLICY_OF))
def test_steps_of_several_ranks_are_done_again(tmp_path: Path, mode: str) -> None:
    made = train_together(tmp_path, mode, ADAM, max_grad_norm=1.0)
    report = audited(*made, one_process=mode.startswith("graph"))
    assert different(report) == []
    assert report.count("equal", "report") >= report.count("equal", "step") >= 4
    assert report.count("equal", "evaluation") == 3
    assert report.count("skipped") == 0
    assert report.count("equal", "average") or not mode.endswith(("_cadence", "_async")) or mode.startswith("graph")


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("mode", every(3, POLICY_OF))
def test_steps_of_micro_batches_are_done_again(tmp_path: Path, mode: str) -> None:
    """Each with a batch norm of its own, which a step on the whole batch would not equal."""
    job, records = train_together(tmp_path, mode, ADAM, batch_size=12, step=StepSettings(accumulate=3))
    report = audited(job, records, one_process=mode.startswith("graph"))
    assert different(report) == []
    assert report.count("skipped") == 0
    assert report.count("equal", "report") >= report.count("equal", "step") >= 4
    assert different(audited(job, records, step=StepSettings()))


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("mode", ["nccl_sync", "graph_sync", "graph_cadence"])
def test_a_rest_in_micro_batches_is_done_again(tmp_path: Path, mode: str) -> None:
    """Replicas of one process that share a step have equally many, those with batches of their own each what it needs."""
    task = partial(toy.task, norm=True, samples=37)
    job, records = train_together(tmp_path, mode, task, batch_size=8, step=StepSettings(accumulate=2))
    graph = mode.startswith("graph")
    assert different(audited(job, records, one_process=graph)) == []
    if graph:
        assert different(audited(job, records, one_process=graph, own_batches=mode == "graph_sync"))


def limited() -> nn.Module:
    made = toy.net(False)
    for parameter in made.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-0.02, 0.02))
    return made


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("mode", every(2, ["nccl_sync", "zero1", "zero2", "zero3", "graph_sync"]))
def test_gradients_that_hooks_change_are_weighted_afterwards(tmp_path: Path, mode: str) -> None:
    step = StepSettings(accumulate=2)
    made = train_together(tmp_path, mode, lambda: replace(toy.task(), model=limited), batch_size=12, step=step)
    report = audited(*made, model="", one_process=mode.startswith("graph"))
    assert different(report) == []
    assert report.count("equal", "step") >= 4


def overflowing() -> Task:
    """Whose first gradients overflow in half precision, times the first factor; Adam's state is small then."""
    return replace(ADAM(), loss=lambda model, batch: toy.loss(model, batch) * 30.0)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(("mode", "precision"), every(3, spread(POLICY_OF, ["bf16", "fp16"])))
def test_steps_in_half_precision_are_done_again(tmp_path: Path, mode: str, precision: str) -> None:
    step = StepSettings(precision=precision, accumulate=2)
    job, records = train_together(tmp_path, mode, overflowing, step=step, max_grad_norm=1.0)
    report = audited(job, records, one_process=mode.startswith("graph"))
    assert different(report) == []
    assert report.count("equal", "step") >= 4
    assert different(audited(job, records, step=StepSettings(accumulate=2)))


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("mode", ["nccl_sync", "graph_sync"])
def test_a_loss_that_is_not_finite_is_so_again(tmp_path: Path, mode: str) -> None:
    """Of steps that fp16 leaves out: the run has no loss of them."""
    job, records = train_together(tmp_path, mode, test_precision.spiked, step=StepSettings(precision="fp16"))
    report = audited(job, records, one_process=mode.startswith("graph"))
    assert different(report) == []
    assert report.count("equal", "report") >= report.count("equal", "step") >= 4
    kept = read(job.scratch, [file for record in records if isinstance(record, Finished) for file in record.kept])
    assert any(None in step.losses for step in kept.steps)
    wrong = [replace(each, loss_sum=each.loss_sum + 1.0) if isinstance(each, Progress) else each for each in records]
    found = audited(job, wrong, one_process=mode.startswith("graph"))
    assert found.count("different", "report") == report.count("equal", "report")


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("mode", every(2, ["nccl_sync", "nccl_cadence", "zero3", "graph_sync"]))
def test_a_cache_that_grows_is_no_part_of_the_state(tmp_path: Path, mode: str) -> None:
    """The audit ended with an error, as the model had another size than was kept."""
    task = partial(replace, ADAM(), model=partial(test_flat.Growing, 2))
    job, records = train_together(tmp_path, mode, task)
    report = audited(job, records, model="", one_process=mode.startswith("graph"))
    assert different(report) == []
    assert report.count("skipped") == 0
    assert report.count("equal", "step") >= 4


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("steps", [6, 20])
def test_steps_of_a_run_of_steps_are_done_again(tmp_path: Path, steps: int) -> None:
    """Of epochs that are shorter than the data, and longer; augmented."""
    job, records = train_together(tmp_path, "nccl_sync", shifted, steps=steps, epochs=2)
    report = audited(job, records, augment=True)
    assert different(report) == []
    assert report.count("equal", "step") >= 4
    assert different(audited(job, records, augment=True, length=steps * 12 + 120))


def unweighted(begin: Any, self: Any, batch: Any) -> float:
    factor = begin(batch)
    self._weight = 1.0 / 2
    return float(factor)


def forgets_at_averages(apply: Any, self: Any, *order: Any, **named: Any) -> Any:
    self._loop.replica.optimizer.state.clear()
    return apply(*order, **named)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("mode", "breaks", "sign"),
    [
        ("nccl_sync", wrapped(GradientAverage, "begin", unweighted), "change of parameter"),
        ("cpu_async", wrapped(snapshot.Backend, "apply", forgets_at_averages), "is gone after the average of round"),
        ("cpu_async", wrapped(Replica, "step", twice), "loss"),
    ],
)
def test_what_is_broken_between_ranks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, breaks: Break, sign: str
) -> None:
    with monkeypatch.context() as patch:
        breaks(patch)
        job, records = train_together(tmp_path, mode, ADAM)
    found = different(audited(job, records))
    assert any(sign in line for line in found), found


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("batches", [False, True], ids=["the sum", "each batch"])
def test_what_another_rank_evaluates_in_the_middle_of_a_run_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: bool
) -> None:
    """The last evaluation, and two others as a whole, are done again anyway."""
    sound = Replica.evaluate

    def evaluate(self: Replica, part: int, parts: int, *more: Any) -> tuple[int, float, float, float]:
        samples, loss, metric, content = sound(self, part, parts, *more)
        if part != 1:
            return samples, loss, metric, content
        if batches:
            self.shown = [(start, stop, loss + 1.0, right) for start, stop, loss, right in self.shown]
        return samples, loss + (len(self.shown) if batches else 1.0), metric, content

    def found(name: str) -> list[str]:
        job, records = train_together(tmp_path / name, "nccl_cadence", toy.task, epochs=8)
        own = [figure for figure in evaluations(records) if figure[0] == job.epochs - 1][-1]
        return different(audited(job, records, evaluations=(own,)))

    (tmp_path / "sound").mkdir()
    (tmp_path / "broken").mkdir()
    assert found("sound") == []
    monkeypatch.setattr(Replica, "evaluate", evaluate)
    wrong = [line for line in found("broken") if "sum of the losses" in line or "test loss" in line]
    assert any(("test loss" in line) == batches for line in wrong)


@pytest.mark.usefixtures("in_process")
def test_a_last_step_of_all_is_kept_as_one_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind it ranks may step on their own, with buffers of their own, as those of local SGD do."""

    def ended(end: Callable[..., None], self: StepKeeper, *about: int) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(StepKeeper, "_together", False)
            end(*about)

    wrapped(StepKeeper, "end", ended)(monkeypatch)
    job, records = train_together(tmp_path, "nccl_sync", ADAM)
    kept = read(job.scratch, [file for record in records if isinstance(record, Finished) for file in record.kept])
    after = [part.values for step in kept.steps if step.rank for parts in step.after.values() for part in parts]
    assert after
    assert not any(values is not None for values in after)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("mode", ["zero1", "nccl_sync"])
def test_what_one_rank_alone_kept_is_not_taken_for_the_state_of_all(tmp_path: Path, mode: str) -> None:
    """Of a run that was audited before, most of what ranks kept is thrown away."""
    made = train_together(tmp_path, mode, partial(replace, ADAM(), model=partial(toy.net, False)), epochs=4)
    for number in range(2, 40):
        (tmp_path / f"kept-0-{number}.state").unlink(missing_ok=True)
    assert different(audited(*made, model="toy")) == []


class Counting(torch.optim.SGD):
    """Counts its steps in a number, as SparseAdam does, and goes by it."""

    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state["step"] = state.get("step", 0) + 1
            parameter.grad.div_(state["step"])
        return super().step(closure)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("mode", every(1, ["zero1", "zero3", "nccl_sync"]))
def test_numbers_of_an_optimizers_state_are_kept_as_well(tmp_path: Path, mode: str) -> None:
    task = partial(replace, toy.task(), optimizer=partial(Counting, lr=0.1))
    report = audited(*train_together(tmp_path, mode, task), model="")
    assert different(report) == []
    assert report.count("equal", "step")


def nudged(end: Callable[..., None], self: StepKeeper, *about: int) -> None:
    if self._rank == 1:
        self._replica.state.parameters[0].data[0, 0] += 1e-6
    end(*about)


@pytest.mark.usefixtures("in_process")
def test_what_another_rank_has_behind_a_step_of_all_is_held_against_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapped(StepKeeper, "end", nudged)(monkeypatch)
    found = different(audited(*train_together(tmp_path, "nccl_sync", ADAM)))
    assert any(line.startswith("step") and "weight of rank 1" in line for line in found), found
