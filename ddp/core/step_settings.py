"""`StepSettings`: how a rank does a step. Settings alone; `ddp.replica.passes` does it.

The one thing that says so, for every engine, `Trainer` and the audit.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

MOST_PARTS = 10_000
PRECISIONS = ("fp32", "bf16", "fp16")


@dataclass(frozen=True)
class StepSettings:
    """How a rank does a step. ValueError for what cannot be."""

    accumulate: int = 1
    """Micro-batches of a rank's step: so many forward and backward passes, whose gradients add up to the step's."""

    precision: str = "fp32"
    """Type of multiplications in forward and backward passes: `fp32`, or `bf16`, `fp16` by torch's autocast, `fp16` with a
    factor on the loss. Parameters, gradients and evaluation stay in float32."""

    compile: bool = False
    """The model's forward and backward pass go through torch.compile; evaluation does not."""
    deterministic: bool = False
    """PyTorch takes deterministic algorithms, or raises where it has none."""

    def __post_init__(self) -> None:
        parts = self.accumulate
        if isinstance(parts, bool) or not isinstance(parts, int) or not 1 <= parts <= MOST_PARTS:
            raise ValueError(f"accumulate={parts!r} must be a whole number from 1 to {MOST_PARTS}")
        for name in ("compile", "deterministic"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}={getattr(self, name)!r} must be True or False")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision={self.precision!r} is not one of {', '.join(PRECISIONS)}")

    @property
    def half(self) -> bool:
        """Return whether passes are in half precision."""
        return self.precision != "fp32"

    @property
    def given(self) -> dict[str, Any]:
        """What is not as it is by itself: earlier versions know nothing of the rest."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) != each.default}


NAMES = tuple(each.name for each in fields(StepSettings))
"""Of the settings."""
PLAIN = StepSettings()
