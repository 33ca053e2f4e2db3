"""`StepSettings`: how a rank does a step. Settings alone, shared by every engine, `Trainer` and the audit.

`ddp.replica.passes` implements them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

MOST_PARTS = 10_000
PRECISIONS = ("fp32", "bf16", "fp16")


@dataclass(frozen=True)
class StepSettings:
    """Settings of a rank's step. Raises ValueError for invalid ones."""

    accumulate: int = 1
    """Number of micro-batches in a rank's step: forward and backward passes whose gradients are added up."""

    precision: str = "fp32"
    """Precision of forward and backward passes: `fp32`, or `bf16` and `fp16` by torch.autocast; `fp16` also scales the loss.
    Parameters, gradients and evaluation stay in float32."""

    compile: bool = False
    """Whether to compile the model's forward and backward pass with torch.compile. Evaluation is not compiled."""
    deterministic: bool = False
    """Whether to use only PyTorch's deterministic algorithms; PyTorch raises where it has none."""

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
        """Whether passes are in half precision."""
        return self.precision != "fp32"

    @property
    def given(self) -> dict[str, Any]:
        """Settings that differ from their defaults: earlier versions do not know the others."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) != each.default}


NAMES = tuple(each.name for each in fields(StepSettings))
"""Names of the settings."""
PLAIN = StepSettings()
