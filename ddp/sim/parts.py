"""Parts of a simulation: the cost model, a step that was trained, a rank in virtual time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddp.core.messages.commands import Average
from ddp.core.messages.events import RankEvent
from ddp.core.network.link_costs import meeting_s
from ddp.core.network.links import Links
from ddp.core.samples.spans import Batch
from ddp.core.worker import Step, Worker

JOIN = 1
"""Number of the collective in which a group is formed."""


def _one(rank: int, step: int) -> float:
    return 1.0


def _nothing(rank: int) -> float:
    return 0.0


def _awake(rank: int, step: int) -> float:
    return 0.0


def _falling(fraction: float) -> float:
    """Return the learning rate after this fraction of training: a cosine from 0.1 to 0."""
    return 0.05 * (1 + math.cos(math.pi * fraction))


@dataclass(frozen=True)
class Costs:
    """The cost model: virtual seconds of everything that ranks do, and the learning rate."""

    step_s: Callable[[int, int], float] = _one
    """(rank, steps that it has done) -> seconds of its next step."""
    asleep_s: Callable[[int, int], float] = _awake
    """(rank, steps that it has done) -> seconds of the next step without a core: the sleep of an emulated slow rank."""
    cores: int | None = None
    """Number of cores that all ranks share in equal parts; None: each rank has its own."""
    by_samples: bool = False
    """Whether `step_s` and `asleep_s` scale with the samples of a slice; else every slice costs as much as a full batch."""
    beside_s: float = 0.0
    """Seconds of a shared core that a rank uses for a step besides `step_s`, as part of `between_s`."""
    absorbed: float = 0.0
    """Fraction of its waiting for a core by which a rank sleeps less after the step, as its step takes a given time."""
    between_s: float = 0.0
    """Seconds before each step that are in no slice."""
    latency_s: float = 0.001
    wire_s: float = 0.01
    """Seconds of a collective, from the last rank's arrival to the end."""
    wire: Callable[[tuple[int, ...], int], float] | None = None
    """(members, number of their group's collectives so far) -> the same, if it is not constant."""
    joins_alone: bool = False
    """Whether a rank forms a new group without waiting for the other members, as in shared memory."""
    leave_s: Callable[[int, int, bool], float] | None = None
    """(rank, number of its group's collectives so far, whether it was the last to enter) -> seconds between the end of a
    collective inside a step and the time at which the rank leaves it; None: 0."""
    transfer: Callable[[int, float], float] | None = None
    """(rank, slowdown factor of its link) -> the factor that it measures for a transfer; None: it measures only slow
    links."""
    links: Links | None = None
    """Links between ranks, and to the coordinator on rank 0's host. They bound the speed of collectives and messages."""
    bytes: int = 8
    """Bytes of an average or of a snapshot."""
    collectives: int = 1
    """Collectives of an average over `links`, one after the other."""
    reduce_s: float = 0.01
    """Seconds of averaging the snapshots."""
    copy_s: float = 0.0
    """Seconds of copying a snapshot, or of applying an update."""
    hand_s: float | None = None
    """Seconds of writing the state for a rank that joins, or of loading it; None: `copy_s`."""
    save_s: float | None = None
    """Seconds of writing a rank's part of a checkpoint; None: `copy_s`."""
    evaluate_s: Callable[[int], float] = _nothing
    """rank -> seconds of its part of an evaluation."""
    rate: Callable[[float], float] = _falling
    """Fraction of training done -> learning rate."""
    start_s: Callable[[int, int], float] = _one
    """(rank, number of its restarts) -> seconds until it is ready."""
    notice_s: float = 0.0
    """Least seconds from the end of a rank's process until it is noticed."""
    lag_s: Callable[[int], float] | None = None
    """rank -> additional seconds of a message from or to it, for a link that becomes slow; None: none."""
    report_s: float = 0.0
    """Least seconds between two progress reports, unless the rank runs out of work."""

    @property
    def handover_s(self) -> float:
        """The seconds of writing or loading the state for a rank that joins."""
        return self.copy_s if self.hand_s is None else self.hand_s

    def collective_s(self, members: tuple[int, ...], size: int, number: int) -> float:
        """Return the seconds of an average of `size` bytes, from the last arrival to its end. Forming a group (`JOIN`)
        moves no data over links."""
        own = self.wire_s if self.wire is None else self.wire(members, number)
        if self.links is None or number == JOIN:
            return own
        return max(own, meeting_s(self.links, members, size, self.collectives, number))


@dataclass(slots=True)
class TrainedBatch:
    """A step that a rank has trained. Its index in `Simulation.trained` is its bit in the contents of a replica."""

    rank: int
    batch: Batch
    start: float
    stop: float
    seen: float
    """Samples seen by all ranks, as far as this rank knew."""
    busy: float
    """Seconds of the step, without waiting for other ranks inside of it."""


@dataclass(slots=True)
class SimulatedRank:
    """A rank in virtual time."""

    machine: Worker = field(default_factory=Worker)
    life: int = 0
    """Number of restarts."""
    doing: str = ""
    """Kind of the present slice of its time (empty: none), its start, and the number of its collective."""
    since: float = 0.0
    seq: int = 0
    inbox: list[Any] = field(default_factory=list)
    """Orders that arrived while it was busy."""
    alive: bool = True
    ended: bool = False
    """Whether its process has ended."""
    busy: bool = False
    """Whether it is in a step, a collective or an evaluation."""
    done: int = 0
    pending: list[TrainedBatch] = field(default_factory=list)
    """Steps trained and not reported."""
    steps: int = 0
    samples: int = 0
    """Steps and samples since the last contribution."""
    after: int = -1
    """Round of the last contribution."""
    slow: float = 1.0
    """Factor on the time of its steps."""
    late: float = 0.0
    """Delay of each batch, as a multiple of its step."""
    link: float = 1.0
    """Factor on the time of its transfers."""
    sent: float = 0.0
    """The least factor that it measured for a transfer since its last report; 0: none."""
    data: float = 0.0
    compute: float = 0.0
    """Seconds of waiting for data and of computing since its last report."""
    mute: int = 0
    """Number of its next messages to be lost."""
    until: float = 0.0
    """It is paused until then."""
    full: str = ""
    """Error when it writes its part of a checkpoint; empty: none."""
    content: int = 0
    """The steps in this replica, as bits: the oracle to check the ledger against."""
    result: int = 0
    """The contents of its last collective's result."""
    laid: int = 0
    """The contents of its snapshot."""
    reports: Sequence[RankEvent] = ()
    """Events to report of its last collective, if it trains for real."""
    order: Average | None = None
    """The order of the collective that it is in."""
    last: TrainedBatch | None = None
    step: tuple[Step, float, float] | None = None
    """(step, start, busy seconds) of the step that it is in, where gradients are averaged inside it."""
    reported: float = 0.0
    group: tuple[int, tuple[int, ...]] | None = None
    """(generation, members)."""
    lives: dict[int, int] = field(default_factory=dict)
    """Member -> number of its restarts when the group was ordered, if any was restarted."""
    joining: int = -1
    """Generation of the group that it is joining; -1: none."""
    met: int = 0
    """Number of collectives that it has entered with its group."""
    last_in: bool = False
    """Whether it was the last to enter its present collective."""
    left: float = 0.0
    """When it left the last collective."""
