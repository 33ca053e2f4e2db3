"""`Checkpointing`: how often a run saves a checkpoint to resume from. Settings alone."""

from __future__ import annotations

from dataclasses import dataclass

UNITS = ("epochs", "averages")
MOST, LONGEST_S = 10**9, 1e7
"""Upper bounds of `every` and of `spacing_s`."""


@dataclass(frozen=True)
class Checkpointing:
    """How often to save. By default at the end of an epoch, at least two seconds after the last: a short run saves none."""

    every: int = 1
    """Epochs or averages from one checkpoint to the next; 0: no checkpoints."""
    unit: str = "epochs"
    """`epochs` or `averages`; where gradients are averaged inside the step, and with one rank, every step is an average."""
    spacing_s: float = 2.0
    """Least time between two checkpoints, and from the start to the first, seconds."""

    def __post_init__(self) -> None:
        if isinstance(self.every, bool) or not isinstance(self.every, int) or not 0 <= self.every <= MOST:
            raise ValueError(f"checkpoint every={self.every} must be a whole number from 0 (none) to {MOST}")
        if self.unit not in UNITS:
            raise ValueError(f"checkpoint unit={self.unit!r} is not one of {', '.join(UNITS)}")
        if not 0 <= self.spacing_s <= LONGEST_S:
            raise ValueError(f"checkpoint spacing_s={self.spacing_s} must be from 0 to {LONGEST_S:g} seconds")

    def due(self, epochs: int, averages: int, seconds: float) -> bool:
        """Return whether a checkpoint is due, given the epochs, averages and seconds since the last one."""
        done = epochs if self.unit == "epochs" else averages
        return 0 < self.every <= done and seconds >= self.spacing_s

    def left(self, averages: int) -> int | None:
        """Return the averages left to the next checkpoint, `averages` after the last; None: checkpoints end epochs."""
        return self.every - averages % self.every if self.every and self.unit == "averages" else None
