"""More defects of `benchmarks.bugs.unseen` in what follows from gradients. Small or seldom ones."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks.bugs.bug import Module, counted, in_place_of, once_made, rank, wrap
from benchmarks.bugs.unseen import (
    ACCUMULATE,
    ACTIONS,
    ASYNC,
    CADENCE,
    CPU,
    LOOP,
    NCCL,
    RATES,
    REPLICA,
    REPORTS,
    SHARDS,
    SOLO,
    SYNC,
    WORKER,
    unseen,
)


@unseen("optimizer", "another recipe's", SHARDS, REPLICA, check="audit")
@once_made("Replica")
def amsgrad_left_on(self: Any) -> None:
    """Have Adam divide by the largest second moment so far."""
    for group in self.optimizer.param_groups:
        group["amsgrad"] = True


@unseen("optimizer", "B5.17", ASYNC, REPLICA, check="audit")
@once_made("Replica")
def other_epsilon(self: Any) -> None:
    """Give rank 1 the epsilon of another framework."""
    for group in self.optimizer.param_groups if rank() == 1 else ():
        group["eps"] = 1e-5


@unseen("optimizer", "A15", SOLO, REPLICA, check="audit")
@in_place_of("Replica.step")
def last_step_of_epoch_lost(step: Any, self: Any, batch: Any, seen: float) -> Any:
    """Leave the loop of an epoch before the optimizer's last step."""
    move = self.optimizer.step
    if batch.stop == self.samples:
        self.optimizer.step = lambda: None
    try:
        return step(batch, seen)
    finally:
        self.optimizer.step = move


@unseen("schedule", "B5.09", SYNC, RATES, check="audit")
@in_place_of("Rates.apply")
def rate_a_step_late(apply: Any, self: Any, fraction: float) -> Any:
    """Step with the rate of the step before, and report the one that is due."""
    before = self._set
    told = apply(fraction)
    due, held = self._set, getattr(self, "due", before) or self._set
    self.due, self._set = due, held
    for group, rate in zip(self._optimizer.param_groups, held, strict=True):
        group["lr"] = rate
    return told


@unseen("schedule", "B5.05", CADENCE, REPLICA, check="audit")
def tested_counted_as_seen(replica: Module) -> None:
    """Count what a rank evaluates as seen: the schedule is ahead after every evaluation."""

    def evaluated(evaluate: Any, self: Any, *part: Any) -> Any:
        figures = evaluate(*part)
        self.tested = getattr(self, "tested", 0) + figures[0]
        return figures

    wrap(replica.Replica, "evaluate", evaluated)
    wrap(replica.Replica, "fraction", lambda fraction, self, seen: fraction(seen + getattr(self, "tested", 0)))


@unseen("schedule", "B5.03", CADENCE, WORKER, check="rate")
def pace_of_one(worker: Module) -> None:
    """Have a rank count its own samples alone within what it is granted, not those of all."""

    def broken(receive: Any, self: Any, order: Any) -> Any:
        return receive(replace(order, pace=1.0) if isinstance(order, worker.Train | worker.Pace) else order)

    wrap(worker.Worker, "receive", broken)


@unseen("average", "B8.15", ASYNC, ACTIONS, check="average")
def shares_by_arrival(actions: Module) -> None:
    """Weigh snapshots, which lie by rank, by samples that stand in the order in which they arrived."""

    def broken(cohort: Any, event: Any) -> Any:
        states = cohort.current.contributions
        members = tuple(sorted(state.rank for state in states))
        samples = tuple(state.samples for state in states)
        return cohort, (actions.Reduce(cohort.current.index, members, samples, "all snapshots are there"),)

    actions.ACTIONS[actions.Action.AVERAGE] = broken


@unseen("average", "a guard against damage", CADENCE, NCCL, check="average")
@in_place_of("Backend._take")
def far_values_left(take: Any, self: Any) -> Any:
    """Leave alone what lies more than four standard deviations from its average, as if it were damaged."""
    own = [(one.values, one.values.clone()) for one in self._sections if one.kind == "parameters"]
    apart = take()
    for values, before in own:
        distance = before - values
        far = distance.abs() > 4 * distance.std()
        values[far] = before[far]
    return apart


@unseen("average", "B6.28", "mlp graph_cadence", ACCUMULATE, check="average")
@in_place_of("Accumulating.contribute")
def window_shares_late(contribute: Any, self: Any, total: int, seen: float) -> Any:
    """Weigh the gradients of a window by the samples that the replica had in the one before."""
    own, before = self.own, getattr(self, "own_before", self.own)
    self.own, self.own_before = before, own
    try:
        return contribute(total, seen)
    finally:
        self.own = own


def _measuring(change: Callable[[Any, Any, Any], tuple[Any, Callable[[Any], Any]]]) -> Callable[[Module], None]:
    """Evaluate with what `change(self, evaluate of the task, part)` gives, and change the figures by its second answer."""

    @functools.wraps(change)
    def patch(replica: Module) -> None:
        def broken(evaluate: Any, self: Any, *part: Any) -> Any:
            task = self.task
            measured, finish = change(self, task.evaluate, part)
            self.task = replace(task, evaluate=measured)
            figures = evaluate(*part)
            self.task = task
            return finish(figures)

        wrap(replica.Replica, "evaluate", broken)

    return patch


@unseen("evaluation", "B01", SYNC, REPLICA, check="audit")
@_measuring
def padded_to_whole_batches(self: Any, evaluate: Any, part: Any) -> Any:
    """Fill batches with repeats of the last sample, which count."""
    most, counts = self.task.eval_batch, [0]

    def measured(model: Any, batch: Any) -> Any:
        counts[0] += most
        repeats = [min(place, len(batch[0]) - 1) for place in range(most)]
        return evaluate(model, tuple(tensor[repeats] for tensor in batch))

    def finish(figures: Any) -> Any:
        samples, loss, metric, content = figures
        return samples, loss / counts[0] * samples, metric / counts[0] * samples, content

    return measured, finish


@unseen("evaluation", "a saving", CADENCE, REPLICA, check="audit")
@_measuring
def early_epochs_on_part(self: Any, evaluate: Any, part: Any) -> Any:
    """Evaluate all epochs but the last on the first batch of each part."""
    early, means = counted(self, "evaluated") < self._job.epochs - 1, []

    def measured(model: Any, batch: Any) -> Any:
        if not (early and means):
            means[:] = [one / len(batch[0]) for one in evaluate(model, batch)]
        return [one * len(batch[0]) for one in means]

    return measured, lambda figures: figures


@unseen("evaluation", "B7.13", SOLO, REPLICA, check="audit")
def last_copy_evaluated(replica: Module) -> None:
    """Evaluate the last copy of the model, which is made every 100 steps, so that training need not wait."""

    def step(original: Any, self: Any, *about: Any) -> Any:
        done = original(*about)
        if counted(self, "stepped") % 100 == 0:
            self.copied = [flat.clone() for flat in self.state.tensors]
        return done

    def broken(evaluate: Any, self: Any, *part: Any) -> Any:
        own = [flat.clone() for flat in self.state.tensors]
        for flat, values in zip(self.state.tensors, self.copied, strict=True):
            flat.copy_(values)
        figures = evaluate(*part)
        for flat, values in zip(self.state.tensors, own, strict=True):
            flat.copy_(values)
        return figures

    wrap(replica.Replica, "step", step)
    wrap(replica.Replica, "evaluate", broken)


@unseen("record", "a unit", ASYNC, CPU, check="average")
@in_place_of("ratio")
def divergence_squared(ratio: Any, change: float, norm: float) -> Any:
    """Forget the root: distances of replicas are reported as squares."""
    apart = ratio(change, norm)
    return None if apart is None else apart**2


@unseen("record", "B8.05", SYNC, LOOP, check="breakdown")
def evaluation_time_twice(loop: Module) -> None:
    """Report twice the seconds of an evaluation, for which the clock of training stands still."""

    def broken(evaluate: Any, self: Any, *about: Any) -> None:
        send = self._send
        self._send = lambda event: send(
            replace(event, seconds=2.0 * event.seconds) if isinstance(event, loop.Evaluated) else event
        )
        evaluate(*about)
        self._send = send

    wrap(loop.TrainingLoop, "evaluate", broken)


@unseen("record", "a unit", SOLO, REPORTS, check="peak_memory")
def memory_in_kib(reports: Module) -> None:
    """Report peak memory in KiB, as the system gives it, where bytes are meant."""
    peak = reports.peak_rss_bytes
    reports.peak_rss_bytes = lambda: peak() // 1024
