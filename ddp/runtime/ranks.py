"""The ranks' processes, seen from the parent: started from the fork server, talked to over channels, never left behind."""

from __future__ import annotations

import multiprocessing.connection
from multiprocessing import Pipe
from types import TracebackType

from ddp.core.commands import RankCommand
from ddp.core.errors import ProtocolError, ReduceFailed
from ddp.core.events import Event, Lost, RankEvent, Reduced, Tick
from ddp.runtime import forkserver
from ddp.runtime.channel import Channel, PeerGone
from ddp.runtime.clock import now
from ddp.runtime.rank import main
from ddp.runtime.task import Job

FAREWELL_S = 2.0
"""How long a rank that has finished may take to go."""


class Ranks:
    """All ranks of a run. On leaving the context every process is gone, whatever happened."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._ticked = now()
        self._wake, self._bell = Pipe(duplex=False)
        self._reduced: list[Reduced | Exception] = []

    def __enter__(self) -> Ranks:
        context = forkserver.warm(self._job.preload)
        self._channels: dict[int, Channel] = {}
        self._processes = []
        try:
            for rank in range(self._job.world_size):
                ours, theirs = context.Pipe()
                process = context.Process(target=main, args=(self._job, rank, theirs), name=f"rank-{rank}", daemon=True)
                self._processes.append(process)
                self._channels[rank] = Channel(ours)
                with forkserver.script_left_alone():
                    process.start()
                theirs.close()
        except BaseException:
            self._end(0.0)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(FAREWELL_S if kind is None else 0.0)

    def _end(self, patience_s: float) -> None:
        started = [process for process in self._processes if process.pid is not None]
        for process in started:
            process.join(patience_s)
            if process.is_alive():
                process.kill()  # works on a stopped process as well
        for process in started:
            process.join(FAREWELL_S)
            if not process.is_alive():
                process.close()
        for channel in self._channels.values():
            channel.close()
        self._wake.close()
        self._bell.close()

    def reduced(self, event: Reduced | Exception) -> None:
        """Hand in what the reducer's thread has done; wakes `events`."""
        self._reduced.append(event)
        self._bell.send_bytes(b".")

    def send(self, command: RankCommand) -> None:
        """Give an order. A rank that is gone will be reported by `events`."""
        channel = self._channels.get(command.rank)
        if channel is not None:
            try:
                channel.send(command)
            except PeerGone:
                return

    def drop(self, rank: int) -> None:
        """End a rank that the run goes on without, whatever state it is in."""
        channel = self._channels.pop(rank, None)
        if channel is not None:
            channel.close()
        self._processes[rank].kill()  # works on a stopped process as well

    def events(self, timeout_s: float) -> list[Event]:
        """What has happened; waits up to `timeout_s` for the first thing. As often as that, it says that time has passed."""
        by_connection = {channel.connection: rank for rank, channel in self._channels.items()}
        events: list[Event] = []
        for ready in multiprocessing.connection.wait([*by_connection, self._wake], timeout_s):
            if ready is self._wake:
                events.append(self._take_reduced())
            else:
                rank = by_connection[ready]  # type: ignore[index]
                if rank in self._channels:
                    events += self._hear(rank)
        at = now()
        if at - self._ticked >= timeout_s:
            self._ticked = at
            events.append(Tick(at))
        return events

    def _take_reduced(self) -> Reduced:
        self._wake.recv_bytes()
        event = self._reduced.pop(0)
        if isinstance(event, Exception):
            raise ReduceFailed(f"averaging the snapshots failed: {type(event).__name__}: {event}") from event
        return event

    def _hear(self, rank: int) -> list[Event]:
        try:
            events = self._channels[rank].receive(0.0)
            for event in events:
                if not isinstance(event, RankEvent) or event.rank != rank:
                    raise ProtocolError(f"rank {rank} sent what is not for it to say: {event}")
            return events
        except PeerGone:
            self._channels.pop(rank).close()
            process = self._processes[rank]
            process.join(FAREWELL_S)
            code = process.exitcode
            if code is None:
                return [Lost(now(), rank, "it has hung up, though its process still runs")]
            how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
            return [Lost(now(), rank, f"its process is gone ({how})")]
