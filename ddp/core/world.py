"""`World`: the facts of a run that do not change. Policies start from it."""

from __future__ import annotations

from dataclasses import dataclass

from ddp.core.checkpoint_settings import Checkpointing


@dataclass(frozen=True)
class World:
    """The cohort and its work."""

    size: int
    samples: int
    """Training samples in an epoch."""
    batch: int
    """Samples of one step of one rank."""
    epochs: int
    blocking: bool
    """The backend averages in a collective, ranks stand still meanwhile; else snapshots are averaged beside them."""
    in_step: bool
    """The backend can average gradients inside a step."""
    deadline_s: float = 60.0
    """How long a rank that owes something may be silent."""
    tolerate_loss: bool = False
    """Go on without a rank that is lost, and have others train its unfinished samples; otherwise the run fails."""
    restarts: int | None = 0
    """How often each rank that is lost is started again; None: always."""
    absent: int = 0
    """Ranks, the last ones, that are not there at first: they come when a process is offered for them."""
    spares: int = 0
    """Processes that are offered from the start, for ranks that will be lost."""
    least: int = 1
    """Fewest samples of a rank's slice of a global batch; two where the model takes statistics of its batch."""

    indispensable: str = ""
    """Why no rank can be done without, and what to do about it; empty: those who are left can go on."""
    checkpoints: Checkpointing | None = None
    """How often a checkpoint is made; None: never."""

    @property
    def steps(self) -> int:
        """Steps of one epoch, all ranks together."""
        return -(-self.samples // self.batch)
