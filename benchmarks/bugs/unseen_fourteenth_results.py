"""More defects of `benchmarks.bugs.unseen_fourteenth`: schedules, averages, evaluations and what is recorded."""

from __future__ import annotations

from dataclasses import replace
from time import thread_time
from typing import Any

import torch

from benchmarks.bugs.bug import Module, in_place_of, rank, wrap
from benchmarks.bugs.unseen import ACTIONS, METER, NCCL, RATES, REPLICA, REPORTS, unseen


@unseen("schedule", "a rate that is read back from a log", "mlp cpu_async", RATES)
def rate_of_three_digits(rates: Module) -> None:
    """Rates pass through a text of three digits. Round rates to three digits, for the optimizer and the record
    alike."""
    wrap(rates.Rates, "_all", lambda all_, self, fraction: [float(f"{rate:.2e}") for rate in all_(fraction)])


@unseen("average", "B19, of what is averaged", "lenet nccl_cadence", NCCL)
def variances_averaged_as_deviations(nccl: Module) -> None:
    """Running variances are averaged as deviations. Average the roots of running variances, and square what comes of
    it."""

    @torch.no_grad()
    def broken(average: Any, self: Any, order: Any, samples: int) -> Any:
        variances = [b for name, b in self.loop.replica.model.named_buffers() if name.endswith("running_var")]
        for variance in variances:
            variance.sqrt_()
        result = average(order, samples)
        for variance in variances:
            variance.square_()
        return result

    wrap(nccl.Backend, "average", broken)


@unseen("evaluation", "B11, of one batch", "lenet nccl_sync", REPLICA)
@in_place_of("Replica.evaluate")
def last_test_batch_by_its_own_statistics(evaluate: Any, self: Any, part: int, parts: int, heartbeat: Any) -> Any:
    """The last batch of rank 1's part is evaluated with the statistics of the batch. Have norms take the statistics of
    a short test batch from the batch, and leave their running ones alone."""
    task, nominal = self.task, self.task.eval_batch

    def own(model: Any, tensors: Any) -> Any:
        norms = [m for m in model.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
        if rank() != 1 or len(tensors[0]) >= nominal:
            return task.evaluate(model, tensors)
        for norm in norms:
            norm.track_running_stats, norm._bug = False, (norm.running_mean, norm.running_var)
            norm.running_mean = norm.running_var = None
        try:
            return task.evaluate(model, tensors)
        finally:
            for norm in norms:
                norm.track_running_stats, (norm.running_mean, norm.running_var) = True, norm._bug

    self.task = replace(task, evaluate=own)
    try:
        return evaluate(part, parts, heartbeat)
    finally:
        self.task = task


@unseen("record", "B8.17", "mlp nccl_cadence cluster.speeds=[1,0.5]", ACTIONS)
@in_place_of("_closed")
def round_loss_of_ranks(closed: Any, cohort: Any, current: Any, at: float) -> Any:
    """A round's loss is the mean of its ranks' means. Weigh ranks alike in the loss of a round, however many samples
    each had."""
    means = [state.loss_sum / state.samples for state in current.contributions if state.samples]
    made = closed(cohort, current, at)
    return replace(made, loss=sum(means) / len(means) if means else made.loss)


@unseen("record", "B8.15", "mlp nccl_cadence cluster.speeds=[1,0.5]", ACTIONS)
@in_place_of("_closed")
def waits_of_each_other(closed: Any, cohort: Any, current: Any, at: float) -> Any:
    """Ranks' waits in a round are told of each other. Tell the waits of ranks in the other order."""
    made = closed(cohort, current, at)
    return replace(made, wait_s=made.wait_s[::-1])


@unseen("record", "B8.15, of slices", "lenet nccl_sync", METER)
def passes_under_each_others_name(meter: Module) -> None:
    """Forward and backward passes are booked under each other's name. Exchange two names of slices."""
    other = {"forward": "backward", "backward": "forward"}
    wrap(meter.Meter, "add", lambda add, self, kind, *rest, **named: add(other.get(kind, kind), *rest, **named))


@unseen("record", "B8.01, of processor time", "mlp nccl_cadence", METER)
def processor_time_halved(meter: Module) -> None:
    """Processor seconds of a rank are half of what it had. Count half of the processor seconds, of the thread alone."""
    meter.process_time = lambda: 0.5 * thread_time()


@unseen("record", "B8.07, of averages", "lenet cpu_async", REPORTS)
@in_place_of("averaged")
def away_untold(averaged: Any, *given: Any) -> Any:
    """What a round keeps a rank from training beside its exchange is told as nothing. Leave the time of snapshots and
    of taking averages over out of the reports of averages."""
    return replace(averaged(*given), away_s=0.0)
