"""Defects of `benchmarks.bugs.unseen` in averages, evaluations and records: of settings that few give, of units."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from torch.nn import functional as F

from benchmarks.bugs.bug import Module, counted, in_place_of, wrap
from benchmarks.bugs.unseen import CPU, FIGURES, NCCL, OUTER, PARTS, PASSES, REPORTS, TORCH, unseen


@unseen("average", "B6.04", "lenet nccl_cadence averaging.elastic=0.5", NCCL)
@in_place_of("Backend._take")
def elastic_twice(take: Any, self: Any) -> Any:
    """Replicas move half as far to the average as the setting says. Multiply by the setting twice."""
    job = self.job
    averaging = replace(job.averaging, elastic=job.averaging.elastic**2)
    self.job = replace(job, averaging=averaging)
    try:
        return take()
    finally:
        self.job = job


@unseen("average", "D19, of a velocity", "mlp cpu_async averaging.outer=nesterov", OUTER)
@in_place_of("Outer.step")
def velocity_lost_at_times(step: Any, self: Any, *arguments: Any) -> None:
    """The outer optimizer's velocity is lost at every seventh average. Begin with a velocity of zero again, now and
    then."""
    if counted(self, "step") % 7 == 6:
        self.velocity.zero_()
    step(*arguments)


@unseen("average", "B19, over replicas", "lenet cpu_cadence cluster.speeds=[1,0.5]", CPU)
def buffers_weigh_alike(snapshot: Module) -> None:
    """Running statistics of unequal ranks count alike, their parameters do not. Weigh buffers by the number of
    replicas."""
    original, kinds = snapshot.average, [""]

    def treatment(treat: Any, self: Any, kind: str, *more: Any) -> Any:
        kinds[0] = kind
        return treat(kind, *more)

    def broken(mean: Any, laid: Any, weights: Any, *more: Any, **named: Any) -> Any:
        weights = [float(bool(weight)) for weight in weights] if kinds[0] == "buffers" else weights
        return original(mean, laid, weights, *more, **named)

    wrap(snapshot.Reducer, "_treatment", treatment)
    snapshot.average = broken


@unseen("evaluation", "an autocast that is open too long", "lenet nccl_sync train.precision=bf16", PASSES)
@in_place_of("StepPasses.eager")
def evaluates_in_half(eager: Callable[[], Any], self: Any) -> AbstractContextManager[Any]:
    """The test set is evaluated in half precision, where float32 is promised. Evaluate under the autocast of
    training."""
    made: AbstractContextManager[Any] = self.autocast()
    return made


@unseen("evaluation", "B8.21, the other way round", "char_rnn nccl_cadence", PARTS)
def first_tokens_unscored(parts: Module) -> None:
    """The first quarter of each piece of text, which has least context, is not scored. Score what has eight tokens
    before it."""

    def broken(model: Any, batch: Any) -> Any:
        tokens, targets = batch
        logits = model(tokens)[:, 8:]
        total = F.cross_entropy(logits.flatten(0, -2), targets[:, 8:].flatten()) * len(tokens)
        return total, total

    parts.token_entropy = broken


@unseen("evaluation", "B17", "lenet torch_ddp", TORCH)
@in_place_of("TorchBackend.averaged_weights")
def own_statistics_in_evaluation(averaged_weights: Any, self: Any, exact: bool) -> AbstractContextManager[None]:
    """Each rank evaluates its part of the test set with running statistics of its own. Leave the buffers of rank 0 to
    the end of the run."""
    return nullcontext()


@unseen("record", "a buffer that is cleared one call too early", "mlp solo", "ddp.replica.scalars")
@in_place_of("Scalars.drain")
def last_step_unrecorded(drain: Any, self: Any) -> Any:
    """What the last step before a report recorded is dropped, as if it had been undone. Forget the last step's values
    when a report is made."""
    self.undo()
    return drain()


@unseen("record", "ru_maxrss on Linux", "resnet_graph nccl_sync", REPORTS)
def peak_in_kibibytes(reports: Module) -> None:
    """Peak memory is told in kibibytes and called bytes. Divide by 1024."""
    original = reports.peak_rss_bytes
    reports.peak_rss_bytes = lambda: original() // 1024


@unseen("record", "tokens counted before the shift", "char_rnn solo", FIGURES)
@in_place_of("StepFigures.counting")
def target_counts_as_token(counting: Any, self: Any, *arguments: Any) -> Any:
    """A piece of text counts a token more than the model sees. Count the last target too."""
    first, made = self._tokens is None, counting(*arguments)
    if first and self._tokens:
        self._tokens += 1
    return made
