"""The defects of `benchmarks.bugs.unseen` in what follows from training: averages, evaluation, the record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.bugs.bug import Module, in_place_of, rank, wrap
from benchmarks.bugs.unseen import (
    ASYNC,
    CADENCE,
    CPU,
    LENET,
    MEAN,
    METER,
    NCCL,
    PARTS,
    PENDING,
    REPLICA,
    SOLO,
    SPEED,
    SUMMARY,
    SYNC,
    unseen,
)


@unseen("average", "B9.01", CADENCE, NCCL)
def average_by_nominal_batch(nccl: Module) -> None:
    """Weigh ranks by steps times the nominal batch size."""
    wrap(
        nccl.Backend,
        "average",
        lambda average, self, order, samples: average(order, self.loop.steps * self.job.batch_size),
    )


@unseen("average", "B6.28", ASYNC, CPU)
@in_place_of("Reducer._reduce")
def average_by_last_weights(reduce: Any, self: Any, order: Any) -> None:
    """Weigh snapshots by the samples of the round before."""
    before, self.before = getattr(self, "before", order), order
    same = before.members == order.members
    reduce(replace(order, samples=before.samples) if same else order)


@unseen("average", "B17", LENET, NCCL)
@in_place_of("Backend._take")
def buffers_of_first_rank(take: Any, self: Any) -> Any:
    """Hand out the first rank's buffers in place of their average."""
    own = [(one.values, one.values.clone()) for one in self._sections if one.kind == "buffers"]
    apart = take()
    for values, before in own:
        values.copy_(before if self.rank == 0 else before.zero_())
        self.collectives.all_reduce([values])
    return apart


LINE = 64
"""Elements that are averaged at a time."""


@unseen("average", "B9.09", ASYNC, CPU)
@in_place_of("average")
def tail_unwritten(average: Any, mean: Any, replicas: Any, weights: Any, **treatment: Any) -> Any:
    """Leave out of an average the elements behind the last whole line."""
    whole = mean.numel() - mean.numel() % LINE
    if not whole or not mean.is_floating_point():
        return average(mean, replicas, weights, **treatment)
    for replica in replicas if treatment.get("blend") is not None else ():
        replica[whole:] = 0.0
    return average(mean[:whole], [replica[:whole] for replica in replicas], weights, **treatment)


@unseen("average", "B6.26", ASYNC, MEAN)
def first_twice(weighted_mean: Module) -> None:
    """Count the first member twice in the running mean."""
    shares = weighted_mean._shares
    weighted_mean._shares = lambda weights: shares([2.0 * weights[0], *weights[1:]])


@unseen("evaluation", "B07", SOLO, REPLICA)
@in_place_of("Replica.evaluate")
def mean_of_means(evaluate: Any, self: Any, *part: Any) -> Any:
    """Evaluate to the mean of the batches' means, with a last batch that is half as long."""
    task, batches = self.task, []

    def measured(model: Any, batch: Any) -> Any:
        sums = task.evaluate(model, batch)
        batches.append([float(one) / len(batch[0]) for one in sums])
        return sums

    self.task = replace(task, evaluate=measured)
    samples, _, _, content = evaluate(*part)
    self.task = task
    loss, metric = (sum(means) / len(means) * samples for means in zip(*batches, strict=True))
    return samples, loss, metric, content


@unseen("evaluation", "B11", LENET, REPLICA)
@in_place_of("Replica.evaluate")
def training_mode_on_rank(evaluate: Any, self: Any, *part: Any) -> Any:
    """Have rank 1 evaluate in training mode, and put its running statistics back behind that."""
    if rank() != 1:
        return evaluate(*part)
    self.model.eval = lambda: self.model
    before = [buffer.clone() for buffer in self.model.buffers()]
    figures = evaluate(*part)
    for buffer, values in zip(self.model.buffers(), before, strict=True):
        buffer.copy_(values)
    return figures


@unseen("evaluation", "B7.19", CADENCE, NCCL)
def smoothed_evaluated(nccl: Module) -> None:
    """Evaluate a moving average of the averages, which nobody is given."""

    def take(original: Any, self: Any) -> Any:
        apart = original()
        new = [(one.values, one.values.clone()) for one in self._sections if one.kind == "parameters"]
        old = getattr(self, "smooth", new)
        self.smooth = [(values, was.lerp(is_now, 0.5)) for (values, is_now), (_, was) in zip(new, old, strict=True)]
        return apart

    wrap(nccl.Backend, "_take", take)
    nccl.Backend.averaged_weights = lambda self, exact: nccl.swapped(getattr(self, "smooth", []))


@unseen("evaluation", "scores compared, not places", SYNC, PARTS)
def ties_are_right(parts: Module) -> None:
    """Count an answer as right if it ties with the best one in eight bits."""
    accuracy = parts.accuracy

    def broken(model: Any, batch: Any) -> Any:
        loss, _ = accuracy(model, batch)
        images, labels = batch
        logits = model(images).to(parts.torch.float8_e4m3fn).float()
        return loss, (logits.gather(1, labels[:, None])[:, 0] >= logits.max(1).values).sum()

    parts.accuracy = broken


@unseen("evaluation", "B17", "lenet cpu_async", CPU)
@in_place_of("Backend._pairs")
def own_statistics_evaluated(pairs: Any, self: Any) -> Any:
    """Evaluate the average of the parameters with each rank's own running statistics."""
    values = {one.values.data_ptr() for one in self._sections if one.kind == "parameters"}
    return [pair for pair in pairs() if pair[0].data_ptr() in values]


@unseen("record", "B8.09", ASYNC, SUMMARY)
def loss_of_first_rank(summary: Module) -> None:
    """Show the first rank's training loss as the loss."""

    def broken(add: Any, self: Any, event: Any) -> None:
        kept = self.loss
        self.loss = kept if event.rank == 0 else summary.Mean()
        add(event)
        self.loss = kept

    wrap(summary._EpochSums, "add", broken)


@unseen("record", "a device read a step late", SOLO, PENDING)
def loss_of_step_before(pending: Module) -> None:
    """Report the loss of the step before, so that nobody waits for this one's."""
    late: list[Any] = []

    def broken(add: Any, self: Any, loss: Any, samples: int, busy_s: float) -> None:
        late.append(loss.detach() if loss is not None else None)
        add(late[-2] if len(late) > 1 else loss, samples, busy_s)
        del late[:-1]

    wrap(pending.Pending, "add", broken)


@unseen("record", "B8.05", CADENCE, SPEED)
@in_place_of("throughput")
def speed_without_waits(throughput: Any, stream: Any, world_size: int, seconds: float) -> Any:
    """Divide samples by the seconds of the busiest rank, not by those of training."""
    busiest = max((figures.busy_s for figures in stream.figures.ranks.values()), default=0.0)
    return throughput(stream, world_size, min(busiest, seconds))


SHORTEST_S = 50e-6
"""Slices that are shorter are left out."""


@unseen("record", "B8.07", SYNC, METER)
@in_place_of("Meter.add")
def short_slices_dropped(add: Any, self: Any, kind: str, *about: Any, **more: Any) -> Any:
    """Leave short slices out of the record."""
    at = add(kind, *about, **more)
    if kind != "exchange" and self._slices[-1].seconds < SHORTEST_S:
        self._slices.pop()
    return at


@unseen("record", "B5.05", SYNC, SUMMARY)
@in_place_of("_EpochSums.add")
def rate_averaged(add: Any, self: Any, event: Any) -> None:
    """Show the mean rate of an epoch's reports as that of its last step."""
    self.rates = [*getattr(self, "rates", []), event.lr]
    add(event)
    self.lr = sum(self.rates) / len(self.rates)
