"""The training loop of a rank without a process of its own, with faults injected by phase: for `bench faults`.

Knows when a phase begins, not what faults do in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from torch import Tensor

from ddp.core.messages.commands import Evaluate, Save
from ddp.core.messages.events import RankEvent, Saved
from ddp.core.worker import Step
from ddp.engine.loop import TrainingLoop
from ddp.engine.phase_faults import PhaseInjector
from ddp.replica.replica import Replica
from ddp.replica.task import Job


def loop_of(job: Job, rank: int, send: Callable[[RankEvent], None], replica: type[Replica] = Replica) -> TrainingLoop:
    """Return the training loop of a rank in this process."""
    kind = PhasedLoop if job.phase_faults else TrainingLoop
    return kind(job, rank, send, replica)


class PhasedLoop(TrainingLoop):
    """Injects the faults of a phase before it runs the phase."""

    def __init__(
        self, job: Job, rank: int, send: Callable[[RankEvent], None], replica: type[Replica] = Replica
    ) -> None:
        super().__init__(job, rank, send, replica)
        self._phases = PhaseInjector(job, rank, self.slowdown.slow_down, _unsent)
        self._phases.meet("start")

    def train(self, step: Step) -> None:
        """Train one step."""
        self._phases.enter(step, self, alone=True)
        super().train(step)

    def evaluate(self, order: Evaluate, averaged_weights: AbstractContextManager[None] | None = None) -> None:
        """Evaluate a part of the test set."""
        self._phases.enter(order, self, alone=True)
        super().evaluate(order, averaged_weights)

    def save(
        self, order: Save, kept: Sequence[Tensor] = (), averaged_weights: AbstractContextManager[None] | None = None
    ) -> Saved:
        """Write this rank's part of a checkpoint."""
        self._phases.enter(order, self, alone=True)
        return super().save(order, kept, averaged_weights)

    def finish(self) -> None:
        """Write what is left."""
        self._phases.meet("end", self.total_steps)
        super().finish()


def _unsent() -> None:
    raise ValueError("a rank without a process of its own sends no messages that could be lost")
