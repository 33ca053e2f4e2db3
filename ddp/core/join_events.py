"""What a rank says that was started again: that it is there, and that it has taken the others' state. Decides nothing."""

from __future__ import annotations

from dataclasses import dataclass

from ddp.core.event_parts import FromRank, OptimizerSketch, Sketch


@dataclass(frozen=True)
class Joining(FromRank):
    """A rank that was started again has its model, data and transport; it lacks the others' state."""

    samples: int
    """Training samples in an epoch."""
    digest: str
    """sha256 of its parameters as it begins; those that all began with."""
    life: int = 0
    """How often it was started again."""
    device: str = ""
    transport: str = ""


@dataclass(frozen=True)
class Left(FromRank):
    """A rank has left its group as ordered, for others that wait to get in, and stands still."""

    generation: int
    steps: int | None = None
    """Steps that it has done of the grant that all share; None: it has none in hand."""


@dataclass(frozen=True)
class Joined(FromRank):
    """A rank has taken the state that another sent, and can be granted work."""

    round: int
    seconds: float = 0.0
    """What that took it, from the order on."""
    bytes: int = 0
    sketch: Sketch = ""
    """Of its model, as it begins to train."""
    optimizer: OptimizerSketch = ()
    """Of what its own optimizer keeps, by name."""


@dataclass(frozen=True)
class Offered:
    """Somebody has a process for one more rank: the first that is absent, or else the next that is lost."""

    at: float


JoinEvent = Joining | Joined | Left
