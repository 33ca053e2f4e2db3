"""`RowRank`: what is known of a rank beside its parameters, which are a row."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ddp.core.spans import Batch
from ddp.core.worker import Step


@dataclass
class RowRank:
    """One rank's account."""

    begun: deque[Step] = field(default_factory=deque)
    """Steps that have begun and are not computed."""
    ended: deque[Step] = field(default_factory=deque)
    """Steps that have ended and are not reported; their losses may not be there yet."""
    losses: deque[float] = field(default_factory=deque)
    """Of steps that are computed and not reported."""
    epoch: int = -1
    """Of its last step."""
    trained: list[Batch] = field(default_factory=list)
    """What is not summed up for the record."""
    after: int = -1
    steps: int = 0
    samples: int = 0
    """The two since the last contribution, of which `after` is the round."""
    applied: bool = False

    def contribute(self, round: int) -> tuple[int, int]:
        """Return (steps, samples) since the last contribution, and reset both. `round`: what they contribute to."""
        contribution, self.after = (self.steps, self.samples), round
        self.steps = self.samples = 0
        return contribution
