"""Defines `RowRank`: the state of a rank besides its parameters, which are a row."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ddp.core.samples.spans import Batch
from ddp.core.worker import Step


@dataclass
class RowRank:
    """Bookkeeping of one rank."""

    begun: deque[Step] = field(default_factory=deque)
    """Steps that have begun and are not computed yet."""
    ended: deque[Step] = field(default_factory=deque)
    """Steps that have ended and are not reported yet; their losses may still be missing."""
    losses: deque[float] = field(default_factory=deque)
    """Losses of steps that are computed and not reported yet."""
    loss_sums: dict[int, float] = field(default_factory=dict)
    """Epoch -> sum of the loss over samples of computed steps, for the record; apart from reports."""
    epoch: int = -1
    """Epoch of the last step."""
    trained: list[Batch] = field(default_factory=list)
    """Batches that are not in a checksum for the record yet."""
    after: int = -1
    steps: int = 0
    samples: int = 0
    """Steps and samples since the last contribution, which was to round `after`."""
    applied: bool = False

    def note(self, batch: Batch, loss: float) -> None:
        """Add the mean loss of a computed step."""
        self.losses.append(loss)
        self.loss_sums[batch.epoch] = self.loss_sums.get(batch.epoch, 0.0) + batch.samples * loss

    def contribute(self, round: int) -> tuple[int, int]:
        """Return (steps, samples) since the last contribution, and reset both. `round`: round of this contribution."""
        contribution, self.after = (self.steps, self.samples), round
        self.steps = self.samples = 0
        return contribution
