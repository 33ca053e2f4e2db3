"""Defects of evaluations: on what, with which model, in which mode, and how answers are put together."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from benchmarks.bugs.bug import ASYNC, EVERY, RANKS, Family, Module, in_place_of, last, wrap

EVALUATION = Family("evaluation")
REPLICA, SNAPSHOT = "ddp.replica.replica", "ddp.backends.snapshot"
NORMED = ("lenet", "resnet_graph")
"""Models that evaluate otherwise than they train."""


def _on(source: Callable[[Any], Any]) -> Callable[[Module], None]:
    """Return a patch by which replicas evaluate on what `source` makes of the task."""

    @in_place_of("Replica.__init__")
    @functools.wraps(source)
    def patch(make: Any, self: Any, job: Any, *made_of: Any) -> None:
        task = job.task()
        make(replace(job, task=lambda: replace(task, eval_data=lambda: source(task))), *made_of)

    return patch


def _answers(change: Callable[[Any, Any, Any], Any]) -> Callable[[Module], None]:
    """Return a patch by which the answer for a batch is `change(answer, model, batch)`."""

    @in_place_of("Replica.evaluate")
    @functools.wraps(change)
    def patch(evaluate: Any, self: Any, *about: Any) -> Any:
        task, answer = self.task, self.task.evaluate
        self.task = replace(task, evaluate=lambda model, batch: change(answer, model, batch))
        try:
            return evaluate(*about)
        finally:
            self.task = task

    return patch


@EVALUATION.bug(REPLICA, "audit", EVERY, "evaluation is on the training data", "A23")
def evaluated_on_training_data(replica: Module) -> None:
    _on(lambda task: task.train_data())(replica)


@EVALUATION.bug(REPLICA, "audit", EVERY, "evaluation is on as many training samples", "A23")
@_on
def evaluated_on_leaked_data(task: Any) -> Any:
    test, training = task.eval_data(), task.train_data()
    return type(test)(*(tensor[: len(test)] for tensor in training.tensors))


@EVALUATION.bug(REPLICA, "audit", EVERY, "labels of the test set are the model's neighbours': a tenth is wrong", "B01")
@_on
def test_labels_wrong(task: Any) -> Any:
    test = task.eval_data()
    images, labels = test.tensors
    wrong = labels.clone()
    wrong[::10] = (wrong[::10] + 1) % 10
    return type(test)(images, wrong)


@EVALUATION.bug(REPLICA, "audit", EVERY, "a twentieth of the test set is left out", "B03")
@_on
def test_set_cut(task: Any) -> Any:
    test = task.eval_data()
    return type(test)(*(tensor[: len(test) * 19 // 20] for tensor in test.tensors))


@EVALUATION.bug(REPLICA, "data", RANKS, "every rank evaluates the first part of the test set", "B23")
def part_evaluated(replica: Module) -> None:
    wrap(
        replica.Replica,
        "evaluate",
        lambda evaluate, self, part, parts, heartbeat: evaluate(0, parts, heartbeat),
    )


@EVALUATION.bug(SNAPSHOT, "evaluation", ASYNC, "ranks evaluate their own replica, not the average", "B17")
def own_model_evaluated(snapshot: Module) -> None:
    snapshot.Backend.averaged_weights = lambda self, exact: nullcontext()


@EVALUATION.bug(SNAPSHOT, "evaluation", ASYNC, "a stale average is evaluated", "issue")
def stale_average_evaluated(snapshot: Module) -> None:
    def applied(apply: Any, self: Any, *about: Any, **named: Any) -> Any:
        answer = apply(*about, **named)
        self.means = [*getattr(self, "means", [])[-1:], [mean.clone() for mean in self._average]]
        return answer

    @contextmanager
    def older(averaged_weights: Any, self: Any) -> Any:
        now = [mean.clone() for mean in self._average]
        for mean, stale in zip(self._average, getattr(self, "means", [now])[0], strict=True):
            mean.copy_(stale)
        with averaged_weights:
            yield
        for mean, own in zip(self._average, now, strict=True):
            mean.copy_(own)

    wrap(snapshot.Backend, "apply", applied)
    wrap(
        snapshot.Backend, "averaged_weights", lambda averaged_weights, self, exact: older(averaged_weights(False), self)
    )


@EVALUATION.bug(REPLICA, "audit", EVERY, "the model evaluates in training mode", "B11", models=NORMED)
@_answers
def in_training_mode(answer: Any, model: Any, batch: Any) -> Any:
    model.train()
    try:
        return answer(model, batch)
    finally:
        model.eval()


@EVALUATION.bug(REPLICA, "audit", EVERY, "a sample counts as right if it is among the two best answers", "B8.21")
@_answers
def best_of_two(answer: Any, model: Any, batch: Any) -> Any:
    loss, _ = answer(model, batch)
    best = model(batch[0]).topk(2, 1).indices
    return loss, (best == batch[1][:, None]).any(1).sum()


@EVALUATION.bug(REPLICA, "audit", EVERY, "the sum over a batch is the mean times the nominal size of a batch", "B07")
@_answers
def nominal_batch(answer: Any, model: Any, batch: Any) -> Any:
    loss, metric = answer(model, batch)
    scale = 500 / len(batch[0])
    return loss * scale, metric * scale


@EVALUATION.bug(REPLICA, "audit", RANKS, "one rank's part of the metric is counted twice", "B09")
@_answers
def part_twice(answer: Any, model: Any, batch: Any) -> Any:
    loss, metric = answer(model, batch)
    return (loss, metric * 1.04) if last() else (loss, metric)


@EVALUATION.bug(REPLICA, "audit", EVERY, "evaluation computes in bfloat16", "B9.07")
@_answers
def evaluated_in_half(answer: Any, model: Any, batch: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return answer(model, batch)


@EVALUATION.bug(REPLICA, "audit", EVERY, "the loss of the test is divided by the number of its batches", "B8.13")
@_answers
def loss_divided_again(answer: Any, model: Any, batch: Any) -> Any:
    loss, metric = answer(model, batch)
    return loss / 12, metric
