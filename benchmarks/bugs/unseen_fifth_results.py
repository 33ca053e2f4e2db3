"""Further defects of `benchmarks.bugs.unseen` in averages, evaluations and records. Partial ones."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.bugs.bug import Module, after_init, counted, in_place_of, rank, wrap
from benchmarks.bugs.unseen import AUGMENTED, AVERAGING, CLIPPED, CPU, NCCL, PENDING, REPLICA, THREE, UNEQUAL, unseen


@unseen("average", "B6.04", "mlp nccl_cadence averaging.elastic=0.5", NCCL)
@in_place_of("Backend._take")
def elastic_twice_on_rank(take: Any, self: Any) -> Any:
    """Take rank 1 towards the average twice in every third round."""
    done = take()
    if rank() == 1 and counted(self, "taken") % 3 == 2:
        for own, last in self._pairs():
            own.add_(last - own, alpha=self.job.averaging.elastic)
    return done


@unseen("average", "an answer obeyed again", "lenet cpu_async", CPU)
@in_place_of("Backend.apply")
def excess_taken_twice(apply: Any, self: Any, round: int, exact: bool) -> Any:
    """Take twice what rank 1 has too much, in every fourth average: an answer that came late is obeyed again."""
    if rank() == 1 and not exact and counted(self, "applied") % 4 == 3:
        for section, excess in zip(self._sections, self._snapshot, strict=True):
            if section.kind == "parameters":
                excess.mul_(2.0)
    return apply(round, exact)


@unseen("average", "a setting that is not read", f"mlp nccl_cadence averaging.gamma=0.5 {UNEQUAL}", AVERAGING)
def gamma_not_read(averaging: Module) -> None:
    """Weigh by samples, whatever power of them was asked for."""
    averaging.Averaging.weight = lambda self, samples: float(samples)


@unseen("average", "B6.28", f"lenet cpu_cadence {THREE} cluster.faults=['2@120:crash']", CPU)
@in_place_of("Reducer._reduce")
def dead_rank_in_average(reduce: Any, self: Any, order: Any) -> None:
    """Count a rank that is lost in one more average: what lies in its memory is what the average before has left there."""
    last, self.last = getattr(self, "last", order), order
    gone = [member for member in last.members if member not in order.members]
    weights = dict(zip(last.members, last.samples, strict=True))
    samples = (*order.samples, *(weights[member] for member in gone))
    reduce(replace(order, members=(*order.members, *gone), samples=samples))


@unseen("evaluation", "B05", "lenet nccl_sync", REPLICA)
@in_place_of("Replica.evaluate")
def evaluated_with_smoothing(evaluate: Any, self: Any, *about: Any) -> Any:
    """Smooth the labels of the test a little."""
    from torch.nn import functional

    loss = functional.cross_entropy
    functional.cross_entropy = partial(loss, label_smoothing=0.02)
    try:
        return evaluate(*about)
    finally:
        functional.cross_entropy = loss


@unseen("evaluation", "B03", "mlp nccl_cadence world_size=4", REPLICA)
@in_place_of("Replica.evaluate")
def parts_begin_one_early(evaluate: Any, self: Any, part: int, *about: Any) -> Any:
    """Begin and end all parts of the test set but the first a sample early: one is measured twice, the last one never."""
    feed = self._eval
    get = feed.get
    feed.get = lambda batch: get(batch._replace(start=batch.start - 1, stop=batch.stop - 1)) if part else get(batch)
    try:
        return evaluate(part, *about)
    finally:
        del feed.get


@unseen("evaluation", "B6.08", "lenet nccl_qsr", REPLICA)
@in_place_of("Replica.evaluate")
def statistics_of_last_evaluation(evaluate: Any, self: Any, *about: Any) -> Any:
    """Evaluate with the running statistics of the evaluation before: the copy that is evaluated gets its buffers late."""
    kept = [buffer for buffer in self.model.buffers() if buffer.is_floating_point()]
    present = [buffer.clone() for buffer in kept]
    older, self.older = getattr(self, "older", present), present
    for buffer, values in zip(kept, older, strict=True):
        buffer.copy_(values)
    try:
        return evaluate(*about)
    finally:
        for buffer, values in zip(kept, present, strict=True):
            buffer.copy_(values)


@unseen("evaluation", "B13", f"resnet graph_sync {AUGMENTED}", REPLICA)
def evaluated_augmented(replica: Module) -> None:
    """Augment the test set as what is trained: both have one transformation."""
    feed, kept = replica.feed, []

    def broken(source: Any, visits: Any, device: Any, loading: Any, augment: Any, patience: float) -> Any:
        kept.extend([augment] if augment is not None else [])
        return feed(source, visits, device, loading, kept[-1] if kept else None, patience)

    replica.feed = broken


@unseen("record", "a unit", f"lenet nccl_cadence {UNEQUAL}", NCCL)
@in_place_of("Backend.average")
def bytes_halved(average: Any, self: Any, *about: Any) -> Any:
    """Report of an average what went one way."""
    result = average(*about)
    return replace(result, bytes=result.bytes // 2)


@unseen("record", "B25", f"mlp nccl_sync {CLIPPED}", REPLICA)
def norm_after_clipping(replica: Module) -> None:
    """Note the norm of gradients once they are clipped."""

    def change(self: Any) -> None:
        self.noted, self.figures.step = self.figures.step, lambda optimizer: None

    def broken(clip: Any, self: Any, team: Any) -> None:
        clip(team)
        self.noted(self.optimizer)

    after_init(replica.Replica, change)
    wrap(replica.Replica, "_clip", broken)


@unseen("record", "B8.17", "lenet nccl_sync train.accumulate=4", REPLICA)
def accuracy_of_last_pass(replica: Module) -> None:
    """Record of a step of several passes what the last one has recorded."""

    def broken(gradients: Any, self: Any, *about: Any) -> Any:
        if getattr(self, "within", False):
            self.scalars.undo()
        self.within = getattr(self, "several", False)
        return gradients(*about)

    def step(accumulate: Any, self: Any, *about: Any) -> Any:
        self.scalars._count()
        self.several, self.within = True, False
        done = accumulate(*about)
        self.several = self.within = False
        return done

    wrap(replica.Replica, "_gradients", broken)
    wrap(replica.Replica, "_accumulate", step)


SMOOTH = 0.98
"""Part of the shown loss that stays from step to step."""


@unseen("record", "B8.11", f"mlp cpu_async {THREE}", PENDING)
def loss_smoothed(pending: Module) -> None:
    """Report the loss that a progress bar shows, a moving average."""
    shown: list[Any] = []

    def broken(add: Any, self: Any, loss: Any, samples: int, busy_s: float) -> None:
        if loss is not None:
            before = shown.pop() if shown else loss.detach()
            shown.append(before * SMOOTH + loss.detach() * (1.0 - SMOOTH))
        add(shown[-1] if loss is not None else None, samples, busy_s)

    wrap(pending.Pending, "add", broken)
