"""Measures the cost of the real coordinator: the production loop with fake ranks that answer at once through an
in-process channel.

    python -m benchmarks.coordinating                     # 2 and 256 ranks x 200 rounds, microseconds an event
    python -m benchmarks.coordinating --ranks 2,64 --rounds 50 --modes cadence/nccl
    python -m benchmarks.coordinating --write             # and into docs/explanation/speed.md

It counts the processor time of the coordinator's thread: reading each message, deciding, writing the records and the
orders. It does not count the fake ranks, nor the system calls of a pipe.
"""

from __future__ import annotations

import io
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from benchmarks import frame
from benchmarks.documents import put
from ddp.core.coordinator import Coordinator
from ddp.core.messages.commands import Apply, Average, Evaluate, Join, RankCommand, Reduce, Stop
from ddp.core.messages.events import (
    Alive,
    Averaged,
    Evaluated,
    Event,
    Finished,
    Progress,
    Ready,
    Reduced,
    Snapshot,
    Tick,
)
from ddp.core.policies import POLICIES
from ddp.core.settings.world import World
from ddp.core.worker import Idle, Step, Worker
from ddp.engine.elche import coordinate
from ddp.process.clock import now
from ddp.process.codec import decode, encode

MODES = ("sync/nccl", "cadence/nccl", "async/nccl", "cadence/cpu", "async/cpu")
BATCH = 8


@dataclass
class FakeRank:
    """A rank that trains nothing, and has always done its step already."""

    machine: Worker = field(default_factory=Worker)
    inbox: list[bytes] = field(default_factory=list)
    pending: int = 0
    """Samples trained and not reported, of `steps`."""
    steps: int = 0
    since: tuple[int, int] = (0, 0)
    """Steps and samples since the last contribution."""
    after: int = -1
    halted: Average | Step | None = None
    """What it stands in, until all have arrived."""


class FakeRanks:
    """All ranks of a run, and the reducer of snapshots; `counted` is the processor time between two calls of `events`."""

    def __init__(self, world: World, in_step: bool) -> None:
        self._world, self._in_step = world, in_step
        self._all = [FakeRank() for _ in range(world.size)]
        self._lines: deque[bytes] = deque()
        self.counted, self.events_seen, self._began = 0.0, 0, time.thread_time()
        for rank in range(world.size):
            self._tell(Ready(now(), rank, world.samples, 1, "same", "cpu", "memory", least=world.least))

    def send(self, command: RankCommand) -> None:
        """Write an order."""
        self._all[command.rank].inbox.append(encode(command))

    def submit(self, command: Reduce) -> None:
        """Average snapshots, which takes no time."""
        self._tell(Reduced(now(), command.round, 0.0, 8))

    def events(self, timeout_s: float) -> list[Event]:
        """Have all ranks go on as far as they can, uncounted; read what they sent."""
        self.counted += time.thread_time() - self._began
        if not self._lines:
            for rank in range(self._world.size):
                self._act(rank)
            self._meet()
        self._began = time.thread_time()
        if not self._lines:
            return [Tick(now())]
        events = [decode(self._lines.popleft()) for _ in range(len(self._lines))]
        self.events_seen += len(events)
        return events

    def drop(self, rank: int) -> None:
        """Refuse: nobody is lost here."""
        raise AssertionError(f"rank {rank} is dropped")

    def restart(self, rank: int, life: int) -> None:
        """Refuse."""
        raise AssertionError(f"rank {rank} is started again")

    def _tell(self, event: Event) -> None:
        self._lines.append(encode(event))

    def _act(self, index: int) -> None:
        rank = self._all[index]
        for line in rank.inbox:
            rank.machine = rank.machine.receive(decode(line))
        rank.inbox.clear()
        while rank.halted is None:
            rank.machine, action = rank.machine.act()
            match action:
                case Idle():
                    return
                case Step() if self._in_step:
                    rank.halted = action
                case Step():
                    self._step(index, action)
                case Average() if self._world.blocking:
                    rank.halted = action
                case Average():
                    self._tell(Snapshot(now(), index, action.round, *self._contribute(rank, action.round)))
                case Apply():
                    self._tell(Averaged(now(), index, action.round, 0, 0, 0.001, 8, 0.0))
                case Evaluate():
                    self._tell(Evaluated(now(), index, action.epoch, 1, 0.0, 1.0, 0.0, action.part))
                case Join():
                    self._tell(Alive(now(), index))
                case Stop():
                    self._tell(Finished(now(), index, "end", 0, 0))
                    return
                case _:
                    raise AssertionError(action)

    def _step(self, index: int, step: Step) -> None:
        rank, batch = self._all[index], step.batch
        rank.pending, rank.steps = rank.pending + batch.samples, rank.steps + 1
        rank.since = rank.since[0] + 1, rank.since[1] + batch.samples
        if step.last or self._in_step:
            report = (rank.steps, rank.pending, 0.001 * rank.steps * (1 + index % 7 / 100), 0.5, 0.1)
            self._tell(Progress(now(), index, batch.epoch, *report, after=rank.after))
            rank.pending = rank.steps = 0

    def _contribute(self, rank: FakeRank, round: int) -> tuple[int, int]:
        brought, rank.since, rank.after = rank.since, (0, 0), round
        return brought

    def _meet(self) -> None:
        """Let all go on out of a collective, if all are in it."""
        if any(rank.halted is None for rank in self._all):
            return
        for index, rank in enumerate(self._all):
            halted, rank.halted = rank.halted, None
            if isinstance(halted, Step):
                self._step(index, halted)
            elif halted is not None:
                brought = self._contribute(rank, halted.round)
                self._tell(Averaged(now(), index, halted.round, *brought, 0.001, 8, 0.0))


def measured(mode: str, ranks: int, rounds: int) -> tuple[int, float]:
    """Return the events of a run, and the microseconds that each cost the coordinator."""
    policy, backend = mode.split("/")
    world = World(ranks, rounds * ranks * BATCH, BATCH, 1, blocking=backend == "nccl", in_step=policy == "sync")
    settings: dict[str, Any] = {} if policy == "sync" else {"anchor": 1, "max_anchor": 1}
    played, record = FakeRanks(world, policy == "sync"), io.BytesIO()

    def emit(line: Any, at: float) -> None:
        record.write(encode(line, at))

    coordinator = Coordinator.start(POLICIES[policy](**settings), world, now())
    coordinate(coordinator, played, played, lambda order: None, emit)  # type: ignore[arg-type]  # averages as a reducer does
    return played.events_seen, 1e6 * played.counted / played.events_seen


def main() -> int:
    """Run the command; its exit code."""
    parser = frame.options(__doc__, "write the table into the document")
    parser.add_argument("--modes", default=",".join(MODES), help="policy/backend, several with commas")
    parser.add_argument("--ranks", default="2,256")
    parser.add_argument("--rounds", type=int, default=200)
    asked = parser.parse_args()
    rows = []
    for mode in asked.modes.split(","):
        for ranks in map(int, asked.ranks.split(",")):
            # Of a few ranks a run is short: the least of several counts.
            events, cost = min(
                (measured(mode, ranks, asked.rounds) for _ in range(5 if ranks < 16 else 1)), key=lambda r: r[1]
            )
            rows.append([mode.replace("/", ", "), f"{ranks}", f"{events:,}", f"{cost:.0f}"])
            print(rows[-1], file=sys.stderr, flush=True)
    table = frame.table(rows, ["mode", "ranks", "events", "µs an event"])
    print(table)
    if asked.write:
        put("explanation/speed.md", coordinating=table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
