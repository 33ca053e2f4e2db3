"""Events of ranks that join or leave a group, and of processes that are offered. Decides nothing."""

from __future__ import annotations

from ddp.core.messages.event_parts import DataContent, FromRank, OptimizerSketch, Sketch
from ddp.core.values.frozen import value


@value(frozen=True)
class Joining(FromRank):
    """A restarted rank has its model, data and transport ready, and needs the others' state."""

    samples: int
    """Training samples in an epoch."""
    digest: str
    """sha256 of its initial parameters, equal to those that all ranks began with."""
    life: int = 0
    """How often it was started again."""
    device: str = ""
    transport: str = ""
    data: DataContent | None = None
    """None: not recorded."""


@value(frozen=True)
class Left(FromRank):
    """A rank has left its group as ordered, because others wait to join, and waits."""

    generation: int
    steps: int | None = None
    """Steps that it has done of the shared grant; None: it has no shared grant."""


@value(frozen=True)
class Joined(FromRank):
    """A rank has loaded the state that another one sent, and can be granted work."""

    round: int
    seconds: float = 0.0
    """Seconds that this took, from the order on."""
    bytes: int = 0
    sketch: Sketch = ""
    """Sketch of its model before it trains."""
    optimizer: OptimizerSketch = ()
    """Sketch of its optimizer's state."""


@value(frozen=True)
class Offered:
    """Somebody offers a process for one more rank: the first that is absent, or else the next that is lost."""

    at: float
    name: str = ""
    """Name of the file that offers it."""


JoinEvent = Joining | Joined | Left
