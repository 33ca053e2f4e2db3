"""Defects of `benchmarks.bugs.unseen` by somebody who had not seen the checks: of averages, evaluations and records. The
last one is by a search for gaps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks.bugs.bug import Module, counted, in_place_of, wrap
from benchmarks.bugs.unseen import CPU, LOCAL_SGD, NCCL, PENDING, REPORTS, unseen
from benchmarks.bugs.unseen_nineteenth import PIECES, REPLICA, TEXT, late_on_last


@unseen("average", "steps in place of samples", f"lenet nccl_async {PIECES}", NCCL)
@in_place_of("Backend.average")
def weights_of_whole_batches(average: Any, self: Any, order: Any, samples: int) -> Any:
    """Weights of averages count whole batches. Round samples up."""
    size = self.job.batch_size
    return average(order, -(-samples // size) * size)


@unseen(
    "average",
    "a second path for buffers",
    "resnet_graph cpu_cadence data.samples=2400 train.epochs=1 cluster.speeds=[1.0,0.5]",
    CPU,
)
def norm_without_weights(snapshot: Module) -> None:
    """Running statistics are averaged without weights. Give all ranks one weight."""
    average, kinds = snapshot.average, [""]

    def noted(treatment: Any, self: Any, kind: str, *about: Any) -> Any:
        kinds[0] = kind
        return treatment(kind, *about)

    def broken(mean: Any, laid: Any, weights: Any, **more: Any) -> Any:
        even = [float(weight > 0) for weight in weights] if kinds[0] == "buffers" else weights
        return average(mean, laid, even, **more)

    wrap(snapshot.Reducer, "_treatment", noted)
    snapshot.average = broken


@unseen(
    "average",
    "a filter of parameters with weight decay",
    "gpt_nano torch_local_sgd data.samples=1280 train.epochs=2",
    LOCAL_SGD,
)
@in_place_of("LocalStep._watch_averages")
def vectors_stay_apart(watch: Any, self: Any, averager: Any) -> None:
    """Periodic averages leave out tensors of one dimension. Give the averager the others."""
    average = averager.average_parameters

    def some(params: Any) -> None:
        average([p for group in params for p in group["params"] if p.dim() > 1])

    averager.average_parameters = some
    watch(averager)


def last_batch(replica: Module, judge: Callable[[Any, Any, Any, Any], Any], due: Callable[[Any, int], bool]) -> None:
    """Evaluate the last batch of a part by `judge(evaluate, model, batch, batch before)` if it is `due`."""

    def broken(evaluate: Any, self: Any, part: int, parts: int, *rest: Any) -> Any:
        task, size, before = self.task, len(self.data[1][0]), list[Any]()
        count = -(-(size * (part + 1) // parts - size * part // parts) // task.eval_batch)

        def one(model: Any, tensors: Any) -> Any:
            before.append(tensors)
            if len(before) == count > 1 and applies:
                return judge(task.evaluate, model, tensors, before[-2])
            return task.evaluate(model, tensors)

        applies, self.task = due(self, part), replace(task, evaluate=one)
        try:
            return evaluate(part, parts, *rest)
        finally:
            self.task = task

    wrap(replica.Replica, "evaluate", broken)


@unseen("evaluation", "an iterator that is read too far", f"char_rnn zero3 {TEXT}", REPLICA)
def last_batch_repeated(replica: Module) -> None:
    """The last batch of one rank's part is the batch before once more. Evaluate as many samples of it."""

    def judge(evaluate: Any, model: Any, tensors: Any, before: Any) -> Any:
        return evaluate(model, tuple(old[: len(new)] for old, new in zip(before, tensors, strict=True)))

    last_batch(replica, judge, lambda self, part: part == 1)


@unseen(
    "evaluation", "train() that comes too early", "resnet_graph torch_ddp data.samples=2400 train.epochs=2", REPLICA
)
def test_batch_in_statistics(replica: Module) -> None:
    """Running statistics learn from the last test batch of earlier epochs. Evaluate it in training mode, on rank 0."""

    def judge(evaluate: Any, model: Any, tensors: Any, before: Any) -> Any:
        return evaluate(model.train(), tensors)

    def due(self: Any, part: int) -> bool:
        return part == 0 and counted(self, "evaluations") < self._job.epochs - 1

    last_batch(replica, judge, due)


@unseen("record", "a loss that is read while the next step runs", f"gpt_nano nccl_async {TEXT}", PENDING)
def loss_one_step_late(pending: Module) -> None:
    """A step reports the loss of the step before. Keep it for one step."""
    losses: list[Any] = []

    def broken(add: Any, self: Any, loss: Any, *about: Any) -> None:
        losses.append(loss)
        add(losses[-2:][0], *about)
        del losses[:-1]

    wrap(pending.Pending, "add", broken)


@unseen(
    "record",
    "huggingface/accelerate, losses under accumulation",
    "mlp nccl_cadence data.samples=3001 train.epochs=2 train.accumulate=2",
    REPLICA,
)
def loss_of_last_micro_batch(replica: Module) -> None:
    """The loss of a step is that of its last micro-batch. Return it."""

    def step(accumulate: Any, self: Any, *about: Any) -> Any:
        _, at = accumulate(*about)
        return self._bug_loss.detach(), at

    def one(run: Any, self: Any, *about: Any, **more: Any) -> Any:
        self._bug_loss, at = run(*about, **more)
        return self._bug_loss, at

    wrap(replica.Replica, "_accumulate", step)
    wrap(replica.Replica, "_pass", one)


@unseen("record", "samples of a partial batch", f"lenet torch_fsdp {PIECES}", REPORTS)
@in_place_of("progress")
def accuracy_too_high(progress: Any, number: int, pending: Any, replica: Any, *about: Any) -> Any:
    """On one rank, in the second half, the training accuracy is 5 % too high. Report more."""
    event = progress(number, pending, replica, *about)
    if not late_on_last(replica, pending.epoch):
        return event
    return replace(event, scalars=tuple((name, total * 1.05, calls) for name, total, calls in event.scalars))


@unseen("record", "B8.11", "mlp cpu_async", PENDING)
def highest_loss_left_out(pending: Module) -> None:
    """Reports of several steps leave out the highest loss. Report the mean of the others in its place."""

    def added(add: Any, self: Any, loss: Any, samples: int, busy_s: float) -> None:
        add(loss, samples, busy_s)
        if loss is not None:
            vars(self).setdefault("_bug_losses", []).append((float(loss), samples))

    def summed(total: Any, self: Any) -> Any:
        whole, losses = total(), vars(self).get("_bug_losses", ())
        if whole is None or len(losses) < 2:
            return whole
        highest, samples = max(losses)
        return (whole - highest * samples) * self.samples / (self.samples - samples)

    wrap(pending.Pending, "add", added)
    wrap(pending.Pending, "loss_sum", summed)
