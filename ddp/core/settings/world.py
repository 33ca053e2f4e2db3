"""`World`: the facts of a run that do not change, from which policies start."""

from __future__ import annotations

from dataclasses import dataclass

from ddp.core.settings.checkpoints import Checkpointing


@dataclass(frozen=True)
class World:
    """The ranks and their work."""

    size: int
    samples: int
    """Training samples in an epoch."""
    batch: int
    """Samples per step and rank."""
    epochs: int
    blocking: bool
    """Whether the backend averages in a collective, for which ranks stop; else from snapshots, while ranks train on."""
    in_step: bool
    """Whether the backend can average gradients inside a step."""
    deadline_s: float = 60.0
    """Seconds that a rank which owes something may be silent."""
    tolerate_loss: bool = False
    """Continue without a lost rank, and have others train its unfinished samples; otherwise the run fails."""
    restarts: int | None = 0
    """How often each lost rank is restarted; None: without limit."""
    absent: int = 0
    """Number of ranks, the last ones, that are absent at the start: they join once a process is offered for them."""
    spares: int = 0
    """Number of processes offered from the start, for ranks that will be lost."""
    least: int = 1
    """Fewest samples in a rank's slice of a global batch; two if the model computes statistics over its batch."""

    indispensable: str = ""
    """Why the run cannot continue without a rank, and what to do about it; empty: it can."""
    checkpoints: Checkpointing | None = None
    """How often to save a checkpoint; None: never."""

    @property
    def steps(self) -> int:
        """Steps of one epoch, over all ranks."""
        return -(-self.samples // self.batch)
