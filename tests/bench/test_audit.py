"""The audit: sound runs are equal, and what breaks a step, an order, a rate or an evaluation is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from bench.audit import contents, reading
from bench.audit.definitions import defined
from bench.audit.reading import CONTENTS, committed, content
from bench.models import parts as set_ups
from bench.results.audit_file import AUDIT, AuditItem, AuditReport, write_report
from bench.results.runfolder import find_runs
from ddp.backends import snapshot
from ddp.core.policies import POLICIES
from ddp.core.step_settings import StepSettings
from ddp.data import epoch_order
from ddp.data.augment import crop_and_flip
from ddp.data.gather import Gather
from ddp.data.source import TensorSource
from ddp.engine import elche
from ddp.engine.loop import TrainingLoop
from ddp.engine.pending import Pending
from ddp.gradients.average import GradientAverage
from ddp.graph import engine as graph_engine
from ddp.replica import keeper, pieces
from ddp.replica import replica as replicas
from ddp.replica.drawn import STRETCHES, StepDraws
from ddp.replica.replica import Replica
from ddp.replica.task import Job, Task
from tests.bench.audited import audited, different, train_alone
from tests.bench.references import one
from tests.bench.streams import make_spec, write_run
from tests.runtime import toy
from tests.runtime.conftest import in_process as in_process

ADAM: Callable[[], Task] = partial(toy.task, lr=0.01, norm=True, optimizer="Adam", schedule=toy.rising_schedule)


def dropped() -> Task:
    """With dropout, momentum and a buffer that is not statistics."""

    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 24), nn.Dropout(0.5), nn.ReLU(), nn.Linear(24, 2))

    return replace(toy.task(), model=net, optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01))


def images(samples: int = 120) -> TensorSource:
    generator = torch.Generator().manual_seed(5)
    return TensorSource(torch.randn(samples, 1, 8, 8, generator=generator), torch.arange(samples) % 2)


def shifted() -> Task:
    """With augmented images."""

    def net() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))

    sources = {"train_data": images, "eval_data": partial(images, 40)}
    return replace(toy.task(), model=net, augment=crop_and_flip(4), **sources)


@pytest.mark.parametrize("task", [toy.task, ADAM, toy.odd_task, dropped], ids=["plain", "adam", "odd", "dropout"])
def test_a_sound_run_is_done_again_with_equal_results(tmp_path: Path, task: Callable[[], Task]) -> None:
    report = audited(*train_alone(tmp_path, task))
    assert different(report) == []
    assert report.count("equal", "step") >= 8
    assert report.count("equal", "report") == report.count("equal", "step")
    assert report.count("equal", "chain") >= 4
    assert report.count("equal", "evaluation") == 3
    assert report.count("equal", "initial") == 1
    assert report.count("skipped") == 0


def test_of_a_large_model_a_part_of_the_state_afterwards_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "LARGE", 0)
    monkeypatch.setattr(pieces, "MOST", 5)
    with monkeypatch.context() as patch:
        made = train_alone(tmp_path / "sound", ADAM)
        breaks, _ = BROKEN["a frozen layer"]
        breaks(patch)
        broken = train_alone(tmp_path / "broken", ADAM)
    assert different(audited(*made)) == []
    assert any("change of parameter 0.weight: 0 in the run" in line for line in different(audited(*broken)))


def test_augmented_images_are_computed_anew(tmp_path: Path) -> None:
    made = train_alone(tmp_path, shifted)
    assert different(audited(*made, augment=True)) == []
    assert any("loss" in line for line in different(audited(*made, augment=False)))


def test_gradients_that_are_limited_are_so_again(tmp_path: Path) -> None:
    job, records = train_alone(tmp_path, toy.task, max_grad_norm=0.1)
    assert different(audited(job, records)) == []
    assert any("change of parameter" in line for line in different(audited(job, records, max_grad_norm=None)))


Break = Callable[[pytest.MonkeyPatch], None]


def wrapped(owner: Any, name: str, broken: Callable[..., Any]) -> Break:
    """`broken(original, self, *arguments)` in place of a method."""
    original = getattr(owner, name)
    return lambda patch: patch.setattr(
        owner, name, lambda self, *a, **named: broken(partial(original, self), self, *a, **named)
    )


def twice(step: Any, self: Any, *batch: Any) -> Any:
    step(*batch)
    return step(*batch)


def labels_off(finished: Any, self: Any, batch: Any, read: Any, *indices: Any) -> Any:
    inputs, labels = finished(batch, read, *indices)
    return inputs, labels if batch.start % 3 else (labels + 1) % 2


def frozen(make: Any, self: Any, *made_of: Any) -> None:
    make(*made_of)
    next(self.model.parameters()).requires_grad_(False)


def forgetful(make: Any, self: Any, *made_of: Any) -> None:
    make(*made_of)
    step = self.optimizer.step
    self.optimizer.step = lambda: (self.optimizer.state.clear(), step())


def forgets_between(step: Any, self: Any, *batch: Any) -> Any:
    done = step(*batch)
    self.replica.optimizer.state.clear()
    return done


def clipped(clip: Any, self: Any, team: Any) -> None:
    nn.utils.clip_grad_norm_(self.model.parameters(), 0.05)


def scaled(backward: Any) -> Break:
    return lambda patch: patch.setattr(replicas, "backward", lambda loss: backward(loss * 1.01))


def in_test_mode(step: Any, self: Any, *batch: Any) -> Any:
    self.model.eval()
    return step(*batch)


def stuck(apply: Any, self: Any, fraction: float) -> float:
    rate = apply(fraction)
    for group in self._optimizer.param_groups:
        group["lr"] = 0.01
    self._set = [0.01]
    return float(rate)


def best(evaluate: Any, self: Any, *part: Any) -> Any:
    samples, loss, metric, content = evaluate(*part)
    return samples, loss, metric + 1, content


def late_but_for_the_last(evaluate: Any, self: Any, order: Any, *consensus: Any) -> None:
    model = {name: value.clone() for name, value in self.replica.model.state_dict().items()}
    now = getattr(self, "model_before", model)
    self.model_before = model
    if order.epoch < self.job.epochs - 1:
        measure = self.replica.evaluate

        def stale(*part: Any) -> Any:
            self.replica.model.load_state_dict(now)
            figures = measure(*part)
            self.replica.model.load_state_dict(model)
            return figures

        self.replica.evaluate = stale
    evaluate(order, *consensus)
    self.replica.__dict__.pop("evaluate", None)


def of_the_start(report: Any, self: Any) -> None:
    self.replica.lr = self.replica.rates.at(0.0)
    report()


def late(patch: pytest.MonkeyPatch) -> None:
    losses: list[Tensor] = []

    def broken(add: Any, self: Any, loss: Tensor, *about: Any) -> None:
        losses.append(loss.detach())
        add(losses[-2:][0], *about)

    wrapped(Pending, "add", broken)(patch)


def weighted_on_test(make: Any, self: Any, epoch: int) -> Tensor:
    return torch.as_tensor(make(0))


BROKEN: dict[str, tuple[Break, str]] = {
    "wrong labels": (wrapped(Gather, "finished", labels_off), "loss"),
    "every batch twice": (wrapped(Replica, "step", twice), "loss"),
    "a batch twice": (wrapped(TrainingLoop, "train", twice), "positions, "),
    "a frozen layer": (wrapped(Replica, "__init__", frozen), "change of parameter 0.weight: 0 in the run"),
    "optimizer state lost in steps": (wrapped(Replica, "__init__", forgetful), "change of parameter"),
    "optimizer state lost between steps": (wrapped(TrainingLoop, "_step", forgets_between), "chain, "),
    "clipping": (wrapped(Replica, "_clip", clipped), "change of parameter"),
    "a scaled loss": (scaled(replicas.backward), "exp_avg"),
    "test mode": (wrapped(Replica, "step", in_test_mode), "buffer"),
    "a schedule that never arrives": (wrapped(replicas.Rates, "apply", stuck), "learning rate after"),
    "a result that is better": (wrapped(Replica, "evaluate", best), "metric: "),
    "an epoch of an older model": (wrapped(TrainingLoop, "evaluate", late_but_for_the_last), "test loss: "),
    "the same order in every epoch": (wrapped(epoch_order.EpochOrder, "_make", weighted_on_test), "loss"),
    "losses reported half as large": (
        wrapped(Pending, "loss_sum", lambda total, self: total() / 2),
        "a sum of losses of",
    ),
    "losses reported a step late": (late, "a sum of losses of"),
    "the rate of the start reported": (wrapped(TrainingLoop, "report", of_the_start), "a learning rate of"),
    "another seed": (
        lambda patch: patch.setattr(replicas, "derive", lambda seed, *keys: epoch_order.derive(7, *keys)),
        "initial",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    breaks, sign = BROKEN[name]
    with monkeypatch.context() as patch:
        breaks(patch)
        job, records = train_alone(tmp_path, ADAM)
    found = different(audited(job, records))
    assert any(sign in line for line in found), found


def smoothed(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.1)


def ties(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    scores = model(batch[0])
    best, own = scores.max(1).values - 0.1, scores.gather(1, batch[1][:, None])[:, 0]
    return nn.functional.cross_entropy(scores, batch[1], reduction="sum"), (own >= best).sum()


@pytest.mark.parametrize(
    ("changes", "sign"),
    [
        ({}, ""),
        ({"loss": smoothed}, "loss by its definition"),
        ({"evaluate": ties}, "metric of the test set"),
    ],
)
def test_functions_of_a_set_up_are_held_against_definitions(tmp_path: Path, changes: dict[str, Any], sign: str) -> None:
    """The task is as wrong where it is audited."""
    found = different(audited(*train_alone(tmp_path, lambda: replace(toy.task(), **changes)), model="mlp"))
    assert any(sign in line for line in found) if sign else not found, found


@given(samples=st.integers(1, 5), tokens=st.integers(1, 4), seed=st.integers(0, 9))
def test_definitions_agree_with_the_set_ups(samples: int, tokens: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(samples, tokens, 6, generator=generator) * 4
    answers = torch.randint(0, 6, (samples, tokens), generator=generator)
    for model, evaluate, batch in (
        ("gpt_nano", set_ups.token_entropy, (scores, answers)),
        ("lenet", set_ups.accuracy, (scores[:, 0], answers[:, 0])),
    ):
        known = defined(model, batch[0], batch)
        assert known == pytest.approx(tuple(map(float, evaluate(nn.Identity(), batch))), rel=1e-5, abs=1e-5)
    assert defined("conv_ae", scores, (scores, answers)) is None


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


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("mode", POLICY_OF)
def test_steps_of_several_ranks_are_done_again(tmp_path: Path, mode: str) -> None:
    made = train_together(tmp_path, mode, ADAM, max_grad_norm=1.0)
    report = audited(*made, one_process=mode.startswith("graph"))
    assert different(report) == []
    assert report.count("equal", "report") >= report.count("equal", "step") >= 4
    assert report.count("equal", "evaluation") == 3
    assert report.count("skipped") == 0
    assert report.count("equal", "average") or not mode.endswith(("_cadence", "_async")) or mode.startswith("graph")


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("mode", POLICY_OF)
def test_steps_of_micro_batches_are_done_again(tmp_path: Path, mode: str) -> None:
    """Each with a batch norm of its own, which a step on the whole batch would not equal."""
    job, records = train_together(tmp_path, mode, ADAM, batch_size=12, step=StepSettings(accumulate=3))
    report = audited(job, records, one_process=mode.startswith("graph"))
    assert different(report) == []
    assert report.count("skipped") == 0
    assert report.count("equal", "report") >= report.count("equal", "step") >= 4
    assert different(audited(job, records, step=StepSettings()))


def overflowing() -> Task:
    """Whose first gradients overflow in half precision, times the first factor; Adam's state is small then."""
    return replace(ADAM(), loss=lambda model, batch: toy.loss(model, batch) * 30.0)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("mode", POLICY_OF)
def test_steps_in_half_precision_are_done_again(tmp_path: Path, mode: str, precision: str) -> None:
    step = StepSettings(precision=precision, accumulate=2)
    job, records = train_together(tmp_path, mode, overflowing, step=step, max_grad_norm=1.0)
    report = audited(job, records, one_process=mode.startswith("graph"))
    assert different(report) == []
    assert report.count("equal", "step") >= 4
    assert different(audited(job, records, step=StepSettings(accumulate=2)))


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


def test_files_that_were_swapped_or_lost_are_named(tmp_path: Path) -> None:
    job, records = train_alone(tmp_path, toy.task)
    first, second, *_ = sorted(tmp_path.glob("kept-0-*.state"))
    second.write_bytes(first.read_bytes())
    first.unlink()
    report = audited(job, records)
    assert [line for line in different(report) if "is not what the rank recorded" in line]
    assert [item.line for item in report.items if item.outcome == "skipped"] == [f"{first.name} is not here"]


@given(total=st.integers(1, 5000), window=st.integers(1, 300), rank=st.integers(0, 3), seed=st.integers(0, 99))
def test_every_run_has_as_many_drawn_steps_as_it_can(total: int, window: int, rank: int, seed: int) -> None:
    """Whatever the batches: a step for each stretch, and one in the first and the last window."""
    draws = StepDraws.of(f"run {seed}", rank, total, window, alone=True)
    assert min(total, STRETCHES) <= len(draws.samples) <= STRETCHES + 2
    assert draws.has(0, window, 10**9)
    assert draws.has(max(total - window, 0), total, 10**9)
    assert all(0 <= sample < total for sample in draws.samples)
    for first in range(0, total, window):
        step = first // window
        assert draws.has(first, first + window, step) == (
            step in draws.steps or any(first <= sample < first + window for sample in draws.samples)
        )


@given(rank=st.integers(0, 3), seed=st.integers(0, 99), epochs=st.integers(1, 9), own=st.integers(1, 400))
def test_ranks_that_step_alone_have_drawn_steps_behind_averages_and_in_the_last_epoch(
    rank: int, seed: int, epochs: int, own: int
) -> None:
    alone, together = (
        StepDraws.of(f"run {seed}", rank, epochs * own * 8, 8, each, epochs=epochs) for each in (True, False)
    )
    assert [alone.after(averages) for averages in range(3)] == [False, True, True]
    assert 2 <= sum(map(alone.after, range(1, 1000))) <= 40
    assert 0 <= alone.late < max(own // 4, 1)
    assert together.late < 0
    assert not any(map(together.after, range(9)))


def test_bundled_data_has_the_committed_content() -> None:
    """Written by `python -m bench.audit.contents`; of another version of Python the line may be missing."""
    known = json.loads(CONTENTS.read_text())
    found = contents.made()
    assert {name: known.get(name) for name in found if " of Python " not in name} == {
        name: parts for name, parts in found.items() if " of Python " not in name
    }
    assert all(known[name] == parts for name, parts in found.items() if name in known)
    assert committed("noisy_digits") == found["noisy_digits"]


def test_data_of_another_content_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, records = train_alone(tmp_path, toy.task)
    train, test = map(content, (toy.source(None, toy.SAMPLES), TensorSource(*toy.data(100))))
    monkeypatch.setattr(reading, "CONTENTS", tmp_path / "contents.json")
    for digests, parts in (((train, test), []), ((train, train), ["data: the test part of toy is"])):
        body = {"toy": dict(zip(("train", "test"), digests, strict=True))}
        reading.CONTENTS.write_text(json.dumps(body))
        found = different(audited(job, records))
        assert len(found) == len(parts)
        assert all(line.startswith(part) for line, part in zip(found, parts, strict=True))


def sealed_run(root: Path, audit: bool = True) -> Path:
    """A finished run with an audit of two steps."""
    folder = write_run(root, make_spec("solo"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"audit": audit}))
    (run,) = find_runs(folder)[0]
    items = [AuditItem(what="step", outcome="equal", rank=0, epoch=0, step=k, largest=0.1) for k in range(2)]
    report = AuditReport(run_id=run.metrics.run_id, seconds=0.1, kept=[], items=items)
    write_report(folder, report, run.metrics)
    return folder


def test_the_check_reads_what_the_audit_found(tmp_path: Path) -> None:
    folder, base = sealed_run(tmp_path / "runs"), tmp_path / "none"
    assert one(tmp_path / "runs", base, "audit").name == "PASS"
    path = folder / AUDIT
    body = json.loads(path.read_text())
    path.write_text(json.dumps(body | {"seconds": 0.2}))
    assert "was changed" in one(tmp_path / "runs", base, "audit").line
    (run,) = find_runs(folder)[0]
    report = AuditReport.model_validate(body)
    wrong = AuditItem(
        what="step", outcome="different", line="loss: 1 in the run, 2 done again", rank=1, epoch=2, step=3
    )
    write_report(folder, report.model_copy(update={"items": [*report.items, wrong]}), run.metrics)
    verdict = one(tmp_path / "runs", base, "audit")
    assert (verdict.name, "step, rank 1, epoch 2, step 3: loss: 1 in the run" in verdict.line) == ("FAIL", True)
    write_report(folder, report.model_copy(update={"run_id": "w1-s9-other"}), run.metrics)
    assert one(tmp_path / "runs", base, "audit").name == "REFUSED"
    write_report(folder, report.model_copy(update={"items": []}), run.metrics)
    assert one(tmp_path / "runs", base, "audit").name == "INCONCLUSIVE"
    path.unlink()
    verdict = one(tmp_path / "runs", base, "audit")
    assert (verdict.name, f"python -m bench audit {folder}" in verdict.line) == ("INCONCLUSIVE", True)


def test_a_run_that_was_not_to_be_audited_is_not_judged(tmp_path: Path) -> None:
    sealed_run(tmp_path / "runs", audit=False)
    with pytest.raises(ValueError, match="expected 1, got 0"):
        one(tmp_path / "runs", tmp_path / "none", "audit")
