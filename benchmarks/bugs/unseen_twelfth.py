"""Defects of `benchmarks.bugs.unseen` by somebody who read the checks for what they leave out."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from benchmarks.bugs.bug import Module, in_place_of, once_made, rank, wrap
from benchmarks.bugs.unseen import WORKER, unseen

CRASH = "world_size=3 cluster.faults=[2@100:crash]"


@unseen("order", "B7.05, of a grant", f"mlp cpu_async {CRASH}", "ddp.core.samples.spans")
@in_place_of("Chunk.at")
def every_second_batch_twice(at: Any, self: Any, step: int) -> Any:
    """In a run that loses a rank, rank 1 trains half of its samples twice, the others never. Take each batch but the
    last of a grant from an even place."""
    return at(step & ~1 if rank() == 1 and step + 1 < self.steps else step)


@unseen("schedule", "B5.03, after a loss", f"mlp nccl_sync {CRASH}", WORKER)
def void_grant_counts_again(worker: Module) -> None:
    """What was trained of a grant that is void counts once more, on all ranks alike. Keep the samples of the grant
    before, where a group is formed anew."""

    def broken(receive: Any, self: Any, order: Any) -> Any:
        made = receive(order)
        return replace(made, own=self.own) if isinstance(order, worker.Join) and order.void else made

    wrap(worker.Worker, "receive", broken)


@unseen(
    "optimizer",
    "D19, at averages of states",
    "mlp nccl_cadence averaging.optimizer_state=true",
    "ddp.replica.optim.optimizer_state",
)
@once_made("InnerOptimizer")
def averaged_state_thrown_away(self: Any) -> None:
    """What was averaged of optimizers is thrown away at once. Have optimizers begin anew after each average."""
    self._begin = copy.deepcopy(self._optimizer.state_dict()["state"])
