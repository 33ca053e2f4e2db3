"""What a simulation is made of: what things cost, a step as it was done, a rank in virtual time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddp.core.commands import Average
from ddp.core.events import RankEvent
from ddp.core.link_costs import collective_s
from ddp.core.links import Links
from ddp.core.spans import Batch
from ddp.core.worker import Step, Worker


def _one(rank: int, step: int) -> float:
    return 1.0


def _nothing(rank: int) -> float:
    return 0.0


def _awake(rank: int, step: int) -> float:
    return 0.0


def _falling(fraction: float) -> float:
    """Return the learning rate after this part of training: a cosine from 0.1 to 0."""
    return 0.05 * (1 + math.cos(math.pi * fraction))


@dataclass(frozen=True)
class Costs:
    """What is given from outside: what things cost, in virtual seconds, and the learning rate."""

    step_s: Callable[[int, int], float] = _one
    """(rank, how many steps it has done) -> seconds of its next step."""
    asleep_s: Callable[[int, int], float] = _awake
    """The same for what a step takes without a core, behind its work: the sleep of an emulated slow rank."""
    cores: int | None = None
    """That all ranks share, the work of a step on one; None: each rank has its own."""
    by_samples: bool = False
    """`step_s` and `asleep_s` are of a full batch: a larger or smaller slice takes so much more or less."""
    between_s: float = 0.0
    """Of a rank's own before a step, in no slice."""
    latency_s: float = 0.001
    wire_s: float = 0.01
    """A collective, from the last arrival to its end."""
    wire: Callable[[tuple[int, ...], int], float] | None = None
    """(members, how many their group has had) -> the same, where it is not one number."""
    leave_s: Callable[[int, int], float] | None = None
    """(rank, how many its group has had) -> seconds after the end of a collective inside a step in which the rank leaves
    it; None: at its end."""
    transfer: Callable[[int, float], float] | None = None
    """(rank, how many times as long as it needs a transfer of it takes) -> what it measures of that; None: nothing, but of a
    slow link."""
    links: Links | None = None
    """Links of the ranks, and to the coordinator beside rank 0: no collective or message is faster than they are."""
    bytes: int = 8
    """Of a collective, or of a snapshot."""
    reduce_s: float = 0.01
    """Averaging the snapshots."""
    copy_s: float = 0.0
    """Laying down a snapshot, or applying an update."""
    save_s: float | None = None
    """Laying down its part of a checkpoint; None: `copy_s`."""
    evaluate_s: Callable[[int], float] = _nothing
    """rank -> seconds of its part of an evaluation."""
    rate: Callable[[float], float] = _falling
    """Part of training that is done -> learning rate."""
    start_s: Callable[[int, int], float] = _one
    """(rank, how often it was started again) -> seconds until it is there."""
    notice_s: float = 0.0
    """Least time from the end of a rank's process to its notice."""
    lag_s: Callable[[int], float] | None = None
    """rank -> seconds that a message from or to it takes longer now; for a link that becomes slow. None: no link does."""
    report_s: float = 0.0
    """Least time between two reports of progress, unless the rank runs out of work."""

    def collective_s(self, members: tuple[int, ...], size: int, number: int) -> float:
        """Return the seconds of a collective of `size` bytes, from the last arrival to its end."""
        own = self.wire_s if self.wire is None else self.wire(members, number)
        return own if self.links is None else max(own, collective_s(self.links, members, size, number))


@dataclass(slots=True)
class TrainedBatch:
    """One step as a rank did it. Its place in `Simulation.trained` is its bit in what a replica contains."""

    rank: int
    batch: Batch
    start: float
    stop: float
    seen: float
    """Samples that the cohort had seen, by what the rank was told."""


@dataclass(slots=True)
class SimulatedRank:
    """A rank in virtual time."""

    machine: Worker = field(default_factory=Worker)
    life: int = 0
    """How often it was started again."""
    doing: str = ""
    """Kind of the slice of its time that it is in, since when, and of which collective; empty: of none."""
    since: float = 0.0
    seq: int = 0
    inbox: list[Any] = field(default_factory=list)
    """Orders that came while it was busy."""
    alive: bool = True
    busy: bool = False
    """In a step, a collective or an evaluation."""
    done: int = 0
    pending: list[TrainedBatch] = field(default_factory=list)
    """Trained and not reported."""
    steps: int = 0
    samples: int = 0
    """The two since the last contribution."""
    after: int = -1
    """The round of that."""
    slow: float = 1.0
    """Its steps take so many times as long."""
    late: float = 0.0
    """So many times as long as its step a batch comes late."""
    link: float = 1.0
    """What it sends takes so many times as long."""
    sent: float = 0.0
    """What it measured of that, the least since its last report; 0: nothing."""
    data: float = 0.0
    compute: float = 0.0
    """Seconds of the two since its last report."""
    mute: int = 0
    """So many of its next messages are lost."""
    until: float = 0.0
    """It stands still until then."""
    full: str = ""
    """Why it cannot write its part of a checkpoint; empty: it can."""
    content: int = 0
    """Whose steps are in this replica, as bits: the oracle that the ledger is held against."""
    result: int = 0
    """What came out of its last collective."""
    laid: int = 0
    """Its snapshot."""
    reports: Sequence[RankEvent] = ()
    """What it reports of its last collective, where it really works."""
    order: Average | None = None
    """The order that it is in a collective for."""
    last: TrainedBatch | None = None
    step: tuple[Step, float] | None = None
    """The step that it is in, where gradients are averaged inside it, and since when."""
    reported: float = 0.0
    group: tuple[int, tuple[int, ...]] | None = None
    """(generation, members)."""
    joining: int = -1
    """Generation of the group that it waits to be complete."""
    met: int = 0
    """Collectives that it entered with its group."""
    left: float = 0.0
    """When it left the last one."""
