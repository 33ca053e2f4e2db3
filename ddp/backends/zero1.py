"""`zero1`: each rank keeps the optimizer state of a part of the parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

from ddp.backends.base import GroupBackend, RankContext
from ddp.replica.gradient_sync import GradientSync
from ddp.replica.replica import Replica
from ddp.replica.task import Job
from ddp.sharding.recut import recut
from ddp.sharding.zero1 import ShardContext, ShardedStep, Zero, Zero1


class ZeroBackend(GroupBackend):
    """A rank's side, for every kind of sharding."""

    kind: Callable[[ShardContext], Zero]

    def __init__(self, job: Job, rank: int, loop: RankContext) -> None:
        super().__init__(job, rank, loop)
        replica = loop.replica
        parts = (replica.model, replica.state, replica.optimizer, self.collectives, loop.meter)
        self._sharded = self.kind(ShardContext(*parts, job.world_size, rank, replica.step_sketches))

    def gradient_sync(self, replica: Replica) -> GradientSync:
        """Return the sharded step. It exists already, as the optimizer must be sharded before it loads a checkpoint."""
        return self._sharded

    def averaged_weights(self, exact: bool) -> AbstractContextManager[None]:
        """Gather the whole parameters for a `with` block."""
        return self._sharded.full_parameters()

    def recut(self, states: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return this rank's shard of the optimizer's state, given those of all ranks of a run with another number of
        ranks."""
        return recut(cast(ShardedStep, self._sharded), states)

    def finish(self) -> None:
        """Gather the whole model for good."""
        self._sharded.unwrap()


class Backend(ZeroBackend):
    """A rank's side."""

    kind = Zero1
