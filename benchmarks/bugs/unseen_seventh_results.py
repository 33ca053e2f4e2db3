"""Defects of `benchmarks.bugs.unseen` in evaluations and records, by somebody who had not read the checks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.bugs.bug import Module, in_place_of, once_made, wrap
from benchmarks.bugs.unseen import FIGURES, METER, REPLICA, unseen


@unseen("evaluation", "B07", "benchmarks.bugs.own_noisy cpu_async", REPLICA)
@once_made("Replica")
def short_means_count_whole(self: Any) -> None:
    """Means of short batches count as whole. Count the means of a short batch for as many samples as a batch has."""
    evaluate, most = self.task.evaluate, self.task.eval_batch

    def broken(model: Any, tensors: Any) -> Any:
        return tuple(value * most / len(tensors[0]) for value in evaluate(model, tensors))

    self.task = replace(self.task, evaluate=broken)


@unseen("evaluation", "B7.13", "conv_ae zero3", "ddp.sharding.zero3")
def whole_model_kept(zero3: Module) -> None:
    """The first whole model is evaluated again. Put the whole model together once; later evaluations have it still."""

    @contextmanager
    def kept(self: Any, whole: Any) -> Iterator[None]:
        with whole():
            parameters = list(self.site.model.parameters())
            self.kept = getattr(self, "kept", None) or [p.detach().clone() for p in parameters]
            for parameter, value in zip(parameters, self.kept, strict=True):
                parameter.data.copy_(value)
            yield

    wrap(zero3.Zero3, "full_parameters", lambda whole, self: kept(self, whole))


@unseen("evaluation", "B17", "mlp graph_cadence", "ddp.graph.engine")
@in_place_of("_Engine._evaluate")
def evaluated_before_update(evaluate: Any, self: Any, epoch: int) -> None:
    """Replicas are evaluated before their last step. Evaluate replicas that have not taken their last step."""
    self._everywhere = lambda act: self._run([partial(act, loop) for loop in self._loops])
    evaluate(epoch)
    del self._everywhere


@unseen("record", "B8.07", "conv_ae cpu_cadence loader.kind=streaming", METER)
@in_place_of("Meter.add")
def data_booked_as_forward(add: Any, self: Any, kind: str, *about: Any, **named: Any) -> float:
    """Data is booked as forward pass. Book the time until a batch is there as part of the forward pass."""
    at: float = add("forward" if kind == "data" else kind, *about, **named)
    if kind == "data":
        self.rest()
        self.compute()
    return at


@unseen("record", "B8.03", "gpt_nano nccl_sync", FIGURES)
@in_place_of("StepFigures.counting")
def tokens_of_batch(counting: Any, self: Any, tensors: Any, samples: int) -> Any:
    """A batch's tokens are a sample's. Take the tokens of a batch for those of a sample."""
    known, done = self._tokens, counting(tensors, samples)
    if known is None:
        self._tokens *= samples
    return done


@unseen("record", "B8.03", "lenet solo train.accumulate=2 profile.steps=5", FIGURES)
def work_over_all_passes(figures: Module) -> None:
    """Work is divided by all passes' samples. Divide the work of one pass by the samples of all passes of a step."""

    def keep(make: Any, self: Any, job: Any, *about: Any) -> None:
        self.passes = job.step.accumulate
        make(job, *about)

    wrap(figures.StepFigures, "__init__", keep)
    wrap(figures.StepFigures, "_counted", lambda counted, self, samples: counted(samples * self.passes))


@unseen("record", "B8.09", "lenet nccl_cadence", "ddp.replica.scalars")
@in_place_of("Scalars.__enter__")
def scalars_of_last_step(enter: Any, self: Any) -> Any:
    """Scalars are the last step's. Forget what the step before has recorded when another one begins."""
    self._step.clear()
    return enter()


@unseen("record", "B8.11", "vit zero1 train.accumulate=2", REPLICA)
@in_place_of("Replica._accumulate")
def training_loss_divided(accumulate: Any, self: Any, parts: Any, *about: Any) -> Any:
    """A loss is divided twice. Divide the loss of a step by its passes once more, for the record."""
    loss, at = accumulate(parts, *about)
    return loss / len(parts), at
