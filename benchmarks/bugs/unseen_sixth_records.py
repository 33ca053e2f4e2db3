"""Defects of `benchmarks.bugs.unseen` in records: of runs that lose ranks, go on from a checkpoint, or where nobody
looks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from benchmarks.bugs.bug import Module, in_place_of, rank, wrap
from benchmarks.bugs.unseen import LOOP, PENDING, REPLICA, REPORTS, unseen


@unseen("record", "B8.09", "mlp nccl_cadence", PENDING)
@in_place_of("Pending.add")
def loss_of_last_step(add: Any, self: Any, loss: Any, samples: int, busy_s: float) -> None:
    """A report has the loss of its last step. Report the loss of the last step for all steps of a report."""
    add(loss, samples, busy_s)
    if loss is not None:
        self._loss_sum = loss.detach().item() * self.samples


AHEAD_S = 0.33
"""By which a clock is ahead."""


@unseen("record", "B8.05", "mlp nccl_cadence", "ddp.engine.rank")
def clock_ahead_on_rank(module: Module) -> None:
    """Rank 1's clock is a third of a second ahead. Set the clock of rank 1 ahead."""
    shift = module.clock.shift
    module.clock = SimpleNamespace(shift=lambda seconds: shift(seconds + (AHEAD_S if rank() == 1 else 0.0)))


@unseen("record", "B8.05", "mlp cpu_async", REPLICA)
def busy_without_optimizer(replica: Module) -> None:
    """The optimizer is no part of a step's time. Leave the optimizer out of the seconds that a step takes."""
    from ddp.process.clock import now

    def broken(step: Any, self: Any, batch: Any, seen: float) -> Any:
        ready, began = self.passes.ready, [now()]
        self.passes.ready = lambda *about: (began.append(now()), ready(*about))[1]
        try:
            loss, busy = step(batch, seen)
        finally:
            del self.passes.ready
        return loss, busy - (now() - began[-1])

    wrap(replica.Replica, "step", broken)


@unseen("record", "a unit", "lenet nccl_cadence", REPORTS)
def memory_of_the_end(reports: Module) -> None:
    """The peak of memory is that of the end. Report the memory of the end as the peak."""
    from ddp.process.meter import _resident

    reports.peak_rss_bytes = lambda: _resident() or 0


@unseen("record", "A11", "lenet solo train.accumulate=4", PENDING)
@in_place_of("Pending.add")
def passes_counted_as_steps(add: Any, self: Any, *about: Any) -> None:
    """A step of four passes counts as four. Count a step of four passes as four."""
    add(*about)
    self.steps += 3


@unseen("record", "B8.07", "mlp solo", LOOP)
def evaluation_half_booked(loop: Module) -> None:
    """Half of an evaluation's time is booked. Begin the time of an evaluation once its first half is over; the rest
    goes unbooked."""

    def broken(evaluate: Any, self: Any, *about: Any) -> Any:
        add = self.meter.add

        def later(kind: str, since: float, *more: Any, **named: Any) -> Any:
            if kind == "evaluate":
                since += (loop.now() - since) / 2
            return add(kind, since, *more, **named)

        self.meter.add = later
        try:
            return evaluate(*about)
        finally:
            del self.meter.add

    wrap(loop.TrainingLoop, "evaluate", broken)
