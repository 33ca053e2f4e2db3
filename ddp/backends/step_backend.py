"""What engines share whose ranks act as one inside every step: the coordinator of `elche`, one policy, a side each.

An engine is a module with `FACTS`, `Backend` (a subclass of `StepBackend`), `Reducer` and `run`. It averages gradients,
shards or wraps in what `in_step` gives; grants, evaluation, records and checkpoints are those of every run.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from ddp.backends.allreduce import Reducer
from ddp.backends.base import AverageResult
from ddp.backends.facts import BackendFacts
from ddp.backends.transport import transport_of
from ddp.comm.collectives import Collectives
from ddp.core.commands import Average, Join
from ddp.core.events import Sums
from ddp.core.policies.sync import Sync
from ddp.engine import facts
from ddp.replica.in_step import InStep
from ddp.replica.task import Job

if TYPE_CHECKING:
    from ddp.engine.loop import TrainingLoop
    from ddp.engine.solo import Emit
    from ddp.replica.replica import Replica

NEEDED = "{} cannot go on without a rank; the modes of backends nccl and cpu can (nccl_sync, cpu_async, ...)"
FACTS = BackendFacts(blocking=True, in_step=True, indispensable=NEEDED)
__all__ = ["FACTS", "Reducer", "StepBackend", "runner"]


def runner(name: str) -> Callable[[Job, Emit], None]:
    """`run` of the engine `name`. A lost rank ends the run: what it held of the model is gone."""

    def run(job: Job, emit: Emit) -> None:
        from ddp.engine import elche

        asked = job.resume is not None or (job.checkpoints is not None and job.checkpoints.every)
        if asked and not facts(name).checkpoints:
            raise ValueError(f"{name} makes no checkpoints and cannot go on from one")
        elche.run(replace(job, policy=Sync(), backend=name, tolerate_loss=False), emit)

    return run


class StepBackend:
    """A rank's side; engines say what happens inside a step, and how the whole model comes together for an evaluation."""

    facts = FACTS

    def __init__(self, job: Job, rank: int, loop: TrainingLoop) -> None:
        self.job, self.rank, self.loop = job, rank, loop
        transport = transport_of(job, rank, loop.device)
        self.collectives = Collectives(transport, loop.meter, loop.heart)
        self.transport = self.collectives.transport.name

    def join(self, order: Join) -> None:
        """Meet the other ranks."""
        self.collectives.join(order)

    def in_step(self, replica: Replica) -> InStep:
        """What the engine is."""
        raise NotImplementedError

    def consensus(self, exact: bool) -> AbstractContextManager[None]:
        """Within it the replica's model is whole, and the same on all ranks."""
        return nullcontext()

    def settle(self) -> None:
        """Training is over: the replica's model becomes whole."""

    def kept(self) -> list[Tensor]:
        """Nothing lies outside the replica."""
        return []

    def close(self) -> None:
        """Let go of the transport."""
        self.collectives.transport.close()

    def share(self, round: int) -> None:
        """Never asked for: a lost rank ends the run."""
        raise AssertionError("a lost rank ends the run")

    def adopt(self, round: int) -> AverageResult:
        """Never asked for."""
        raise AssertionError("a lost rank ends the run")

    def average(self, order: Average, samples: int) -> AverageResult:
        """Never asked for: ranks are one after every step."""
        raise AssertionError("ranks are one after every step")

    def snapshot(self, round: int) -> Sums:
        """Never asked for."""
        raise AssertionError("ranks are one after every step")

    def apply(self, round: int, exact: bool) -> AverageResult:
        """Never asked for."""
        raise AssertionError("ranks are one after every step")
