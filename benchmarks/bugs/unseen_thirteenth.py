"""Defects of `benchmarks.bugs.unseen` by somebody who read the checks for what is recorded and held against nothing."""

from __future__ import annotations

from time import monotonic
from typing import Any

from benchmarks.bugs.bug import Module, in_place_of, wrap
from benchmarks.bugs.unseen import LOOP, REPLICA, unseen


@unseen("record", "B8.07, of sums of hashes", "mlp nccl_cadence", LOOP)
@in_place_of("TrainingLoop._sum_up")
def later_epochs_untold(sum_up: Any, self: Any) -> None:
    """Ranks sum up what they trained in the first epoch alone. Take the sums of later epochs, and send none of them."""
    if self._pending.epoch:
        self.replica.record.take()
    else:
        sum_up()


@unseen(
    "record",
    "B8.07, of faults on purpose",
    "mlp cpu_async world_size=3 cluster.faults=[2@100:crash]",
    "ddp.engine.fault_injector",
)
def fault_never_comes(injector: Module) -> None:
    """A fault of the script never comes, so that the run passes for one that was to lose a rank. Meet with no fault."""
    wrap(injector.FaultInjector, "meet", lambda meet, self, step: None)


@unseen("record", "B8.03, of averages", "mlp nccl_cadence", "ddp.comm.collectives")
def bytes_too_many(collectives: Module) -> None:
    """Averages are booked with two fifths more bytes than they have. Hand on more bytes than the tensors have, in
    reports and slices alike."""
    wrap(
        collectives.Collectives,
        "measured",
        lambda measured, self, act, size: measured(act, size * 7 // 5),
    )


@unseen("record", "B8.07, of exchanges", "mlp nccl_sync cluster.speeds=[1,0.5]", REPLICA)
@in_place_of("Replica.step")
def exchange_is_busy(step: Any, self: Any, *rest: Any) -> Any:
    """Waiting in exchanges inside steps is booked as steps. Add the time of its exchanges to what a step took."""
    began = monotonic()
    loss, _ = step(*rest)
    return loss, monotonic() - began
