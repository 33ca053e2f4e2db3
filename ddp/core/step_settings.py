"""`StepSettings`: how a rank does a step. Settings alone; `ddp.replica.passes` does it.

The one thing that says so, for every engine, `Trainer` and the audit.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

MOST_PARTS = 10_000


@dataclass(frozen=True)
class StepSettings:
    """How a rank does a step. ValueError for what cannot be."""

    accumulate: int = 1
    """Micro-batches of a rank's step: so many forward and backward passes, whose gradients add up to the step's."""

    def __post_init__(self) -> None:
        parts = self.accumulate
        if isinstance(parts, bool) or not isinstance(parts, int) or not 1 <= parts <= MOST_PARTS:
            raise ValueError(f"accumulate={parts!r} must be a whole number from 1 to {MOST_PARTS}")

    @property
    def given(self) -> dict[str, Any]:
        """What is not as it is by itself: earlier versions know nothing of the rest."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) != each.default}


NAMES = tuple(each.name for each in fields(StepSettings))
"""Of the settings."""
PLAIN = StepSettings()
