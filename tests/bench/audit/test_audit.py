"""The audit: sound runs are equal, and what breaks a step, an order, a rate or an evaluation is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddp.core.settings.steps import StepSettings
from ddp.data import epoch_order
from ddp.data.gather import Gather
from ddp.engine.loop import TrainingLoop
from ddp.engine.pending import Pending
from ddp.replica import replica as replicas
from ddp.replica.evidence import keeper, pieces
from ddp.replica.replica import Replica
from ddp.replica.task import Task
from tests.bench.audit.audit_breaks import ADAM, Break, best, shifted, twice, wrapped
from tests.bench.audit.audited import audited, different, ordered, train_alone
from tests.runtime import toy
from tests.slow import every


def dropped() -> Task:
    """With dropout, momentum and a buffer that is not statistics."""

    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 24), nn.Dropout(0.5), nn.ReLU(), nn.Linear(24, 2))

    return replace(toy.task(), model=net, optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01))


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


def test_evaluations_of_a_run_that_lost_a_rank_are_done_again_too(tmp_path: Path) -> None:
    """They were left out, but for the last: a target was reached by evaluations that nobody repeated."""
    job, records = train_alone(tmp_path, toy.task)
    order = ordered(job, records, planned=False)
    wrong = ((0, order.evaluations[0][1], order.evaluations[0][2] + 0.1), *order.evaluations[1:])
    assert different(audited(job, records, planned=False)) == []
    (line,) = different(audited(job, records, planned=False, evaluations=wrong))
    assert "metric" in line
    twice = (*order.shown, order.shown[0])  # the rank evaluated the part of another one, too
    assert different(audited(job, records, planned=False, evaluations=wrong, shown=twice)) == []


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


def test_gradients_that_share_memory_are_clipped_and_added_once_again(tmp_path: Path) -> None:
    """The audit clipped twice what the run had clipped twice."""
    made = train_alone(tmp_path, toy.summed, max_grad_norm=0.1, step=StepSettings(accumulate=2))
    report = audited(*made, model="")
    assert different(report) == []
    assert report.count("equal", "step") >= 8


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


def late_but_for_the_last(evaluate: Any, self: Any, order: Any, *averaged_weights: Any) -> None:
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
    evaluate(order, *averaged_weights)
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


@pytest.mark.parametrize("name", every(2, BROKEN))
def test_what_is_broken_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    breaks, sign = BROKEN[name]
    with monkeypatch.context() as patch:
        breaks(patch)
        job, records = train_alone(tmp_path, ADAM)
    found = different(audited(job, records))
    assert any(sign in line for line in found), found
