"""A process on another node: it forks the rank that the coordinator orders, and relays between them.

It decides nothing. If the coordinator is gone or silent beyond the deadline, it ends its rank and itself.
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
"""Prepares a job that an agent has received, before its rank gets it."""
CLOCK_PROBES = 8
"""Number of clock requests; the answer with the shortest round trip counts."""


@dataclass(frozen=True)
class RankAssignment:
    """The rank of this process, and how to reach the coordinator."""

    address: tuple[str, int]
    key: bytes
    run: bytes
    rank: int
    node: int
    """Index of this host. The coordinator's host is 0; processes on it share its files and clock."""
    catalogue: job_message.Catalogue
    local_rank: int | None = None
    """Index among the ranks of this host; None: the launcher does not provide it."""
    host_ranks: int = 0
    """Number of ranks on this host; 0: as many as on the coordinator's."""


class HostClock(NamedTuple):
    """This host's clock relative to the coordinator's."""

    offset_s: float = 0.0
    """Seconds to add to this host's clock."""
    error_s: float = 0.0
    """Maximum error of the offset: half of the round trip, because the answer was given at an unknown time within it."""


def connect(
    assignment: RankAssignment, patience_s: float, over: Callable[[], object] = lambda: None
) -> tuple[Wire, HostClock]:
    """Connect to the coordinator. Returns (connection, this host's clock relative to the coordinator's). Raises LinkLost
    after `patience_s`, or earlier if `over` returns that the run is over, or something in its place."""
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
    """Compare this host's clock with the coordinator's, by the answer with the shortest round trip."""
    trip, lacks = min(_ask(wire) for _ in range(CLOCK_PROBES))
    return HostClock(lacks, trip / 2)


def _ask(wire: Wire) -> tuple[float, float]:
    """Ask for the coordinator's time; returns (seconds of the round trip, offset of this clock)."""
    sent = time.monotonic()
    wire.send(FrameKind.CLOCK)
    kind, body = wire.receive()
    came = time.monotonic()
    if kind != FrameKind.CLOCK:
        raise LinkLost("it does not tell the time")
    return came - sent, float(json.loads(body)) - (sent + came) / 2


def unchanged(job: Job) -> Job:
    """Return the job as it is."""
    return job


class NodeAgent:
    """Serves the coordinator on this host. A context manager: at its end, the rank's process has ended."""

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
        finally:  # after Ctrl-C, torchrun sends another signal to its processes
            self._link.close()
            self._scratch.close()

    def serve(self) -> int:
        """Carry out the coordinator's frames until it ends the run; return the exit code. Raises LinkLost, OutOfResources,
        OSError."""
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
        """Prepare for a run: end the previous one and remove its files."""
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
    """One rank in one run."""

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
        """Queue an order for the rank. The rank may take long to read it, and a later KILL must not wait behind it."""
        self._orders.put(line)

    def end(self) -> None:
        """Kill the rank's process and wait for its end."""
        if not self.runner.wait(0.0):
            self.runner.kill()
        self._orders.put(None)
        self._thread.join(2 * EXIT_TIMEOUT_S)

    def _hand_over(self) -> None:
        with suppress(OSError):  # the rank is gone; its end is noticed elsewhere
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
        """Yield the slices that the rank has written since the last call, as frames."""
        if not self._slices.is_file():
            return
        with self._slices.open("rb") as file:
            file.seek(self._sent)
            stop = self._sent + file.read().rfind(b"\n") + 1
        if stop > self._sent:
            for piece in read(self._slices, f"{RUN}/{self._slices.name}", self._sent, stop):
                yield FrameKind.FILE, piece
            self._sent = stop
