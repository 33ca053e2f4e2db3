"""A process that was started elsewhere: it forks the rank that the coordinator orders, and stands between the two.

It decides nothing. When the coordinator is gone, or silent beyond the deadline, its rank is ended and so is it.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from ddp.engine.forked_rank import EXIT_TIMEOUT_S, ForkedRank
from ddp.process.resource_errors import enough
from ddp.process.scratch import scratch
from ddp.remote import job_message
from ddp.remote.file_mirror import FROM_COORDINATOR, RUN, FileMirror, read
from ddp.remote.handshake import PATIENCE_S, NoProof, introduce
from ddp.remote.link import Frame, FrameKind, Link, pump
from ddp.remote.wire import LinkLost, Wire
from ddp.replica.task import Job

JobSetup = Callable[[Job], Job]
"""What an agent does to a job that has come, before its rank gets it."""
CLOCK_PROBES = 8
"""Times that the clock is asked for; the quickest answer counts."""


@dataclass(frozen=True)
class RankAssignment:
    """Which rank this is, and where it is awaited."""

    address: tuple[str, int]
    key: bytes
    run: bytes
    rank: int
    node: int
    """Place of this host; that of the coordinator is 0, and shares files and clock with it."""
    catalogue: job_message.Catalogue
    local_rank: int | None = None
    """Its place among the ranks of its host; None: the launcher does not say."""
    host_ranks: int = 0
    """Ranks of its host; 0: as many as of the coordinator's."""


class HostClock(NamedTuple):
    """This host's clock against the coordinator's."""

    offset_s: float = 0.0
    """What is to be added to it."""
    error_s: float = 0.0
    """Most that this is off: the answer was given at some moment between question and answer, so half of the round trip."""


def connect(
    assignment: RankAssignment, patience_s: float, over: Callable[[], bool] = lambda: False
) -> tuple[Wire, HostClock]:
    """Go to the coordinator; returns the connection, and this host's clock against its. Raises LinkLost, before its time if
    `over` says that nobody is there any more."""
    until = time.monotonic() + patience_s
    while True:
        line: socket.socket | None = None
        try:
            line = socket.create_connection(assignment.address, timeout=PATIENCE_S)
            wire = introduce(line, assignment.key, assignment.run)
            wire.send(FrameKind.HELLO, json.dumps({"rank": assignment.rank, "node": assignment.node}).encode())
            clock = _compare(wire) if assignment.node else HostClock()
            wire.send(FrameKind.THERE)
        except (LinkLost, OSError) as error:
            if line is not None:
                line.close()
            if isinstance(error, NoProof) or time.monotonic() > until or over():
                raise LinkLost("no coordinator at {}:{}: {}".format(*assignment.address, error)) from error
            time.sleep(0.2)
        else:
            return wire, clock


def _compare(wire: Wire) -> HostClock:
    """Compare this host's clock with the coordinator's, by the quickest of some answers."""
    trip, lacks = min(_ask(wire) for _ in range(CLOCK_PROBES))
    return HostClock(lacks, trip / 2)


def _ask(wire: Wire) -> tuple[float, float]:
    """Ask for the time; returns (how long the answer took, what this clock lacks)."""
    sent = time.monotonic()
    wire.send(FrameKind.CLOCK)
    kind, body = wire.receive()
    came = time.monotonic()
    if kind != FrameKind.CLOCK:
        raise LinkLost("it does not tell the time")
    return came - sent, float(json.loads(body)) - (sent + came) / 2


def unchanged(job: Job) -> Job:
    """Return the job as it came."""
    return job


class NodeAgent:
    """A context manager: on leaving it the rank's process is gone."""

    def __init__(
        self, assignment: RankAssignment, wire: Wire, clock: HostClock, prepare_job: JobSetup = unchanged
    ) -> None:
        self._assignment, self._clock, self._prepare_job = assignment, clock, prepare_job
        self._link = Link(wire, "coordinator")
        self._scratch = ExitStack()
        self._job: Job | None = None
        self._mirror: FileMirror | None = None
        self._run: _Run | None = None

    def __enter__(self) -> NodeAgent:
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            if self._run is not None:
                self._run.end()
        finally:  # torchrun ends its processes again where Ctrl-C already did
            self._link.close()
            self._scratch.close()

    def serve(self) -> int:
        """Obey until the coordinator says that all is over; return exit code. Raises LinkLost, OutOfResources, OSError."""
        code: int | None = None
        while True:
            try:
                kind, body = self._link.wire.receive()
            except LinkLost:
                if code is None:
                    raise
                return code
            self._obey(kind, body)
            if kind == FrameKind.GOODBYE:
                code = int(json.loads(body)["code"])

    def _obey(self, kind: bytes, body: bytes) -> None:
        if kind == FrameKind.ORDER:
            self._prepare(job_message.read(body))
        elif kind == FrameKind.FILE and self._mirror is not None:
            self._mirror.write(body)
        elif kind == FrameKind.START and self._job is not None:
            self._run = _Run(self._job, self._assignment.rank, self._link, self._mirror)
        elif kind == FrameKind.MESSAGE and self._run is not None:
            self._run.tell(body)
        elif kind == FrameKind.KILL and self._run is not None:
            self._run.runner.kill()

    def _prepare(self, ordered: job_message.Order) -> None:
        """Make ready for a run: the one before has ended, and its files are not there in this one."""
        if self._run is not None:
            self._run.end()
        self._scratch.close()
        folder = Path(ordered.scratch) if ordered.scratch else self._scratch.enter_context(scratch())
        job = self._prepare_job(job_message.job_of(ordered, self._assignment.catalogue, folder))
        self._link.expect(job.deadline_s)
        self._mirror = None if ordered.scratch else FileMirror(folder, job.checkpoint_folder, FROM_COORDINATOR)
        lacks, error = self._clock
        own, beside = self._assignment, job.host_ranks and (self._assignment.host_ranks or job.host_ranks)
        self._job = replace(
            job,
            host=own.node,
            host_ranks=beside,
            local_rank=own.local_rank,
            clock_shift=lacks,
            clock_error_s=error,
            hostname=os.uname().nodename,
        )


class _Run:
    """One rank of one run."""

    def __init__(self, job: Job, rank: int, link: Link, mirror: FileMirror | None) -> None:
        self._link, self._rank, self._slices = link, rank, job.scratch / f"slices-{rank}.jsonl"
        self._sent = 0
        self._mirror = mirror
        with enough(f"rank {rank} cannot be started"):
            self.runner = ForkedRank(job, rank)
            self._pipe: Connection = self.runner.start()
        self._orders: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._pass_on, name="from the rank", daemon=True)
        self._thread.start()
        threading.Thread(target=self._hand_over, name="to the rank", daemon=True).start()

    def tell(self, line: bytes) -> None:
        """Pass an order on to the rank, which may take its time: the one that ends it is not to wait behind that."""
        self._orders.put(line)

    def end(self) -> None:
        """End the rank's process and see it gone."""
        if not self.runner.wait(0.0):
            self.runner.kill()
        self._orders.put(None)
        self._thread.join(2 * EXIT_TIMEOUT_S)

    def _hand_over(self) -> None:
        with suppress(OSError):  # it is gone; its end is on the way
            while (line := self._orders.get()) is not None:
                self._pipe.send_bytes(line)

    def _pass_on(self) -> None:
        pump(self._pipe, self._link, self._mirror, self._ship)
        reason = self.runner.exit_reason()
        self._ship()
        self._link.post(FrameKind.ENDED, {"fate": reason})
        self._pipe.close()

    def _ship(self) -> None:
        if self._mirror is not None:
            self._link.post_all(self._written())

    def _written(self) -> Iterator[Frame]:
        """Iterate over the lines that the rank has written since the last time."""
        if not self._slices.is_file():
            return
        with self._slices.open("rb") as file:
            file.seek(self._sent)
            stop = self._sent + file.read().rfind(b"\n") + 1
        if stop > self._sent:
            for piece in read(self._slices, f"{RUN}/{self._slices.name}", self._sent, stop):
                yield FrameKind.FILE, piece
            self._sent = stop
