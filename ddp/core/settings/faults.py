"""Fault scripts: which fault hits which rank at which of its steps. The runtime and the simulator run the same scripts.

Knows which faults exist and how they are written, not how they are injected."""

from __future__ import annotations

import re
from dataclasses import dataclass

KINDS = {
    "crash": "the process is killed",
    "raise": "the step raises an exception",
    "stall": "the process stands still, without an end",
    "slow": "steps take `value` times as long from here on (2 if it is left out)",
    "input": "steps take `value` times as long from here on, as each batch comes late",
    "link": "what it sends over its emulated link takes `value` times as long from here on",
    "heal": "what slowed the rank down ends",
    "flip": "bit number `value` of one of its parameters is another from here on",
    "lose": "the next message to the coordinator, signs of life aside, is lost",
}
"""Kind -> what happens, right before the step."""
SLOWING = ("slow", "input", "link")
"""Kinds that last and have a factor."""
LASTING = (*SLOWING, "heal")
"""Kinds that hit a rank again after a restart, or after resuming from a checkpoint."""
BITS = 32
"""Number of bits of a parameter that can be flipped."""
LOSING = ("crash", "raise", "stall", "lose")
"""Kinds that may lead to the loss of the rank; `lose` need not."""
SLOWEST = 1e6
_FORM = re.compile(r"(\d+)@(\d+):([a-z]+)(?:\*(\d+(?:\.\d+)?))?")


@dataclass(frozen=True, slots=True)
class Fault:
    """Before its step number `step` (0: its first one), rank `rank` is hit by a fault of `kind`."""

    rank: int
    step: int
    kind: str
    value: float = 2.0
    """Factor of a slowdown; for `flip` the number of the bit, 0 the lowest."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"fault {self.kind!r} is not one of {', '.join(KINDS)}")
        if self.rank < 0 or self.step < 0:
            raise ValueError(f"fault {self}: rank and step count from 0")
        if self.kind == "flip" and self.value not in range(BITS):
            raise ValueError(f"fault {self.rank}@{self.step}:flip: bits are 0 to {BITS - 1}")
        if self.kind in SLOWING and not 1 <= self.value <= SLOWEST:
            raise ValueError(f"fault {self.rank}@{self.step}:{self.kind}: steps take 1 to {SLOWEST:g} times as long")

    def __str__(self) -> str:
        value = float(self.value)  # written to its last digit, and never as 1e+06
        factor = f"*{int(value) if value.is_integer() else value}" if self.kind in (*SLOWING, "flip") else ""
        return f"{self.rank}@{self.step}:{self.kind}{factor}"


def parse(text: str) -> Fault:
    """Parse `RANK@STEP:KIND`, such as `1@40:crash` or `0@10:slow*3`. Raises ValueError that shows the form."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"fault {text!r} is not of the form RANK@STEP:KIND, such as 1@40:crash or 0@10:slow*3")
    rank, step, kind, factor = match.groups()
    return Fault(int(rank), int(step), kind, float(factor) if factor else 2.0)


PHASES = ("start", "first window", "step", "collective", "snapshot", "evaluation", "checkpoint", "end")
"""Phases of a rank."""
PHASE_KINDS = (*KINDS, "pause", "full", "coordinator")
"""Kinds of faults in a phase: also `pause` for `value` seconds; `full`: no file can be written; `coordinator`: the process
with PID `value` is killed."""


@dataclass(frozen=True, slots=True)
class PhaseFault:
    """The first time that rank `rank` is in `phase` after at least `after` steps, it is hit by a fault of `kind`."""

    rank: int
    phase: str
    kind: str
    value: float = 2.0
    after: int = 0

    def __post_init__(self) -> None:
        if self.phase not in PHASES or self.kind not in PHASE_KINDS:
            raise ValueError(f"fault {self.kind!r} in phase {self.phase!r}: there is no such kind or phase")
