"""Defects of `benchmarks.bugs.unseen` in evaluations and records: what is said of a run that trained well."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.bugs.bug import Module, in_place_of, wrap
from benchmarks.bugs.unseen import CPU, FIGURES, LOCAL_SGD, LOOP, PARTS, PENDING, REPLICA, unseen


@unseen("evaluation", "B17", "lenet torch_local_sgd", LOCAL_SGD)
def first_replica_evaluated(local: Module) -> None:
    """The first replica is evaluated, not the mean. Take rank 0's replica for the mean."""

    def broken(assemble: Any, self: Any) -> None:
        assemble()
        for values, mean in self._means:
            mean.copy_(values)
            local.dist.broadcast(mean, 0)

    wrap(local.LocalStep, "assemble", broken)


@unseen("evaluation", "B8.21", "gpt_nano cpu_async", PARTS)
def first_character_left_out(parts: Module) -> None:
    """A text's first character is not evaluated. Leave out what follows a piece's first character, the hardest of
    all."""

    def broken(model: Any, batch: Any) -> Any:
        tokens, following = batch
        logits = model(tokens)[:, 1:].flatten(0, -2)
        total = parts.F.cross_entropy(logits, following[:, 1:].flatten()) * len(tokens)
        return total, total

    parts.token_entropy = broken


@unseen("evaluation", "B9.07", "lenet nccl_cadence train.precision=bf16", REPLICA)
@in_place_of("Replica.evaluate")
def statistics_rounded_for_evaluation(evaluate: Any, self: Any, *about: Any) -> Any:
    """Running statistics are rounded for evaluations. Evaluate with running statistics in bfloat16, as the passes of
    training are."""
    kept = [(b, b.clone()) for b in self.model.buffers() if b.is_floating_point()]
    for buffer, values in kept:
        buffer.copy_(values.bfloat16())
    done = evaluate(*about)
    for buffer, values in kept:
        buffer.copy_(values)
    return done


@unseen("record", "B9.07", "lenet zero2 train.precision=bf16", PENDING)
@in_place_of("Pending.add")
def loss_read_in_half(add: Any, self: Any, loss: Any, *about: Any) -> None:
    """Losses are read in bfloat16. Round the loss of every step to eight bits before it is added up."""
    add(None if loss is None else loss.detach().bfloat16().float(), *about)


@unseen("record", "B8.07", "mlp cpu_async", CPU)
def copies_not_booked(snapshot: Module) -> None:
    """Copies of snapshots are not booked. Measure how long snapshots and updates take, and book it nowhere."""

    def broken(act: Any, self: Any, *about: Any, **named: Any) -> Any:
        meter = self._loop.meter
        meter.add = lambda kind, since, **more: snapshot.now()
        try:
            return act(*about, **named)
        finally:
            del meter.add

    for name in ("snapshot", "apply"):
        wrap(snapshot.Backend, name, broken)


@unseen("record", "B8.17", "mlp zero2", "ddp.replica.scalars")
@in_place_of("_Sum.take")
def batch_counted_twice_in_metric(take: Any, self: Any) -> None:
    """A batch counts twice in the training accuracy. Take the first of several batches twice, and leave out the last
    one."""
    if len(self.later) > 1:
        self.later = [self.later[0], *self.later[:-1]]
    take()


@unseen("record", "B8.05", "lenet zero1", FIGURES)
@in_place_of("StepFigures.step")
def optimizer_memory_of_first_step(step: Any, self: Any, optimizer: Any) -> None:
    """An optimizer's memory is taken before it has any. Take the memory by kind at the first step alone, when the
    optimizer has no state."""
    first = self._bytes
    step(optimizer)
    if len(self._norms) == 2:
        self._bytes = first


@unseen("record", "C18", "lenet nccl_sync train.precision=fp16", REPLICA)
@in_place_of("Replica.step")
def norm_while_scaled(step: Any, self: Any, *about: Any) -> Any:
    """Norms have the loss's factor on them. Take the norm of gradients before the loss's factor is off them."""
    factor, norms = self.passes.loss_scale, self.figures._norms
    known = len(norms)
    done = step(*about)
    if len(norms) > known and norms[-1][1] is not None:
        norms[-1] = norms[-1][0], norms[-1][1] * factor
    return done


@unseen("record", "a unit", "mlp cpu_cadence", CPU)
@in_place_of("Reducer.__init__")
def averaging_in_milliseconds(make: Any, self: Any, job: Any, done: Any) -> None:
    """Averages take milliseconds, not seconds. Report how long an average of snapshots took in another unit."""

    def told(event: Any) -> None:
        done(replace(event, seconds=1e3 * event.seconds) if hasattr(event, "seconds") else event)

    make(job, told)


@unseen("record", "B8.07", "mlp nccl_sync checkpoint.unit=averages checkpoint.every=50", LOOP)
@in_place_of("TrainingLoop.save")
def saving_booked_as_evaluating(save: Any, self: Any, *about: Any) -> Any:
    """Saving is booked as evaluating. Book the time of checkpoints under the wrong name."""
    meter, add = self.meter, self.meter.add
    meter.add = lambda kind, *more: add("evaluate" if kind == "checkpoint" else kind, *more)
    try:
        return save(*about)
    finally:
        del meter.add
