"""`zero1`: synchronous training in which each rank keeps the optimizer's state of a part of the parameters."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from ddp.backends.step_backend import FACTS, Reducer, StepBackend, runner
from ddp.engine.loop import TrainingLoop
from ddp.replica.in_step import InStep
from ddp.replica.replica import Replica
from ddp.replica.task import Job
from ddp.sharding.zero1 import ShardContext, Zero, Zero1

__all__ = ["FACTS", "Backend", "Reducer", "run"]
run = runner("zero1")


class Backend(StepBackend):
    """A rank's side; of all kinds of sharding."""

    kind: Callable[[ShardContext], Zero] = Zero1

    def __init__(self, job: Job, rank: int, loop: TrainingLoop) -> None:
        super().__init__(job, rank, loop)
        replica = loop.replica
        parts = (replica.model, replica.state, replica.optimizer, self.collectives, loop.meter)
        self._sharded = self.kind(ShardContext(*parts, job.world_size, rank))

    def in_step(self, replica: Replica) -> InStep:
        """The same from the beginning on: the optimizer has its shards before it takes over what a checkpoint holds."""
        return self._sharded

    def consensus(self, exact: bool) -> AbstractContextManager[None]:
        """Whole parameters."""
        return self._sharded.whole()

    def settle(self) -> None:
        """The model is whole."""
        self._sharded.settle()
