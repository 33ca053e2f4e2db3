"""`VirtualTime`: the cost of a step in virtual time, and how it is computed for real. Settings alone."""

from __future__ import annotations

from dataclasses import dataclass

CONSTANT, DAY_S = "constant", 86_400.0
PATHS = ("auto", "sequential", "vectorised")


@dataclass(frozen=True)
class VirtualTime:
    """How ranks of the engine `virtual` train. Other engines ignore it."""

    step_s: float = 0.01
    """Virtual seconds of a full batch on a rank of speed 1."""
    steps: str = CONSTANT
    """Distribution of step times: `constant`, or one that `bench predict --steps` takes, such as `lognormal:0.1`."""
    path: str = "auto"
    """`sequential`: rank by rank, with the same bits as real processes; `vectorised`: many ranks in one operation, for
    models that draw no random numbers and keep no statistics; `auto`: vectorised where possible, from 16 ranks on."""

    def __post_init__(self) -> None:
        if not (isinstance(self.step_s, (int, float)) and 0 < self.step_s <= DAY_S):
            raise ValueError(f"virtual step_s={self.step_s!r} must be a number of seconds above 0, at most {DAY_S:g}")
        if self.path not in PATHS:
            raise ValueError(f"virtual path={self.path!r} is not one of {', '.join(PATHS)}")
