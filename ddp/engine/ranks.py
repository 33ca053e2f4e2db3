"""The ranks' processes, seen from the parent: started from the fork server, reached over channels, never left behind.

A rank that somebody else has a process for is the same from here: a channel, and somebody who ends it."""

from __future__ import annotations

import select
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Protocol

from ddp.core.commands import RankCommand
from ddp.core.errors import Exhausted, ProtocolError, RankLost, ReduceFailed
from ddp.core.events import Event, Finished, Lost, RankEvent, Reduced, Tick
from ddp.core.join_events import Joined
from ddp.engine.rank import main
from ddp.process import forkserver
from ddp.process.channel import Channel, PeerGone
from ddp.process.clock import now
from ddp.process.resource_errors import descriptors, enough
from ddp.replica.task import Job, RankProcess

FAREWELL_S = 2.0
"""How long a rank that has finished may take to go."""


class Ranks(Protocol):
    """The ranks as the coordinator's loop sees them: processes, threads, or objects in this thread."""

    def events(self, timeout_s: float) -> Sequence[Event]:
        """Return what has happened; wait up to `timeout_s` for the first event, and add a `Tick` as often as that."""
        ...

    def send(self, command: RankCommand) -> None:
        """Give an order to the rank that it names. A rank that is gone is reported by `events`."""
        ...

    def drop(self, rank: int) -> None:
        """End a rank that the run goes on without."""
        ...

    def restart(self, rank: int, life: int) -> None:
        """Start a rank again that was dropped. What goes wrong with that is reported by `events`."""
        ...


class ForkedRank:
    """A rank forked from the fork server of this process."""

    def __init__(self, job: Job, rank: int) -> None:
        context = forkserver.warm(job.preload)
        self._connection, self._far_end = context.Pipe()
        arguments = (job, rank, self._far_end)
        self._process = context.Process(target=main, args=arguments, name=f"rank-{rank}", daemon=True)

    def start(self) -> Connection:
        """Fork the rank, from the second on in milliseconds."""
        try:
            with forkserver.script_left_alone():
                self._process.start()
        except BaseException:  # it may have been forked, though nobody knows its number: the closed channel ends it
            self._connection.close()
            raise
        finally:
            self._far_end.close()
        return self._connection

    def wait(self, timeout_s: float) -> bool:
        """Return whether it has ended; True as well of a rank that was never started."""
        if self._process.pid is None:
            return True
        self._process.join(timeout_s)
        return not self._process.is_alive()

    def kill(self) -> None:
        """Kill it; works on a stopped process as well."""
        if self._process.pid is not None:
            self._process.kill()

    def exit_reason(self) -> str:
        """Return how it ended, by its exit code."""
        self.wait(FAREWELL_S)
        code = self._process.exitcode
        if code is None:
            return "it has hung up, though its process still runs"
        return f"its process is gone ({f'killed by signal {-code}' if code < 0 else f'exit code {code}'})"


def averaged(event: Reduced | Exception) -> Reduced:
    """Return what the reducer has done. Raise ReduceFailed for what went wrong there."""
    if isinstance(event, Exception):
        raise ReduceFailed(f"averaging the snapshots failed: {type(event).__name__}: {event}") from event
    return event


class RankProcesses:
    """All ranks of a run. On leaving the context every process is gone, whatever happened."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._ticked = self._left = now()
        with enough(f"{job.world_size} ranks cannot be started"):
            if job.elsewhere is None:
                descriptors(job.world_size)
            self._wake, self._bell = Pipe(duplex=False)
        self._poll, self._waiting = select.poll(), {self._wake.fileno(): -1}
        """What is waited for: which rank is at the other end; -1: the reducer."""
        self._poll.register(self._wake.fileno(), select.POLLIN)
        self._reduced: list[Reduced | Exception] = []
        self._finished: set[int] = set()
        self._coming: set[int] = set()
        """Ranks that were started again and are not back."""
        self._unstarted: list[Lost] = []

    def __enter__(self) -> RankProcesses:
        self._channels: dict[int, Channel] = {}
        self._runners: list[RankProcess] = []
        elsewhere = self._job.elsewhere
        try:
            self._own = own = self._job if elsewhere is None else elsewhere.outfit(self._job)
            for rank in range(self._job.world_size):
                here = elsewhere is None or rank == 0
                with enough(f"rank {rank} cannot be started"):
                    runner = ForkedRank(own, rank) if here or elsewhere is None else elsewhere.runner(own, rank)
                    self._runners.append(runner)
                    self._connect(rank, Channel(runner.start()))
        except BaseException:
            self._end(0.0)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(FAREWELL_S if kind is None else 0.0)

    def _end(self, patience_s: float) -> None:
        try:
            for rank in self._coming:  # the run ended before they were back
                self._runners[rank].kill()
            for runner in self._runners:
                if not runner.wait(patience_s):
                    runner.kill()
            for runner in self._runners:
                runner.wait(FAREWELL_S)
        except BaseException:  # interrupted once more
            for runner in self._runners:
                runner.kill()
            raise
        finally:
            for channel in self._channels.values():
                channel.close()
            self._wake.close()
            self._bell.close()

    def reduced(self, event: Reduced | Exception) -> None:
        """Take in what the reducer's thread has done; wakes `events`."""
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
        if rank in self._channels:
            self._hang_up(rank)
        self._runners[rank].kill()

    def restart(self, rank: int, life: int) -> None:
        """Start a rank again, once its process has ended. If that fails the rank is reported as lost."""
        self._runners[rank].wait(FAREWELL_S)
        elsewhere, job = self._job.elsewhere, replace(self._own, life=life)
        try:
            runner = ForkedRank(job, rank) if elsewhere is None or rank == 0 else elsewhere.runner(job, rank)
            self._runners[rank] = runner
            self._connect(rank, Channel(runner.start()))
            self._coming.add(rank)
        except (OSError, Exhausted, RankLost) as error:
            self._unstarted.append(Lost(now(), rank, f"it cannot be started again: {error}"))

    def events(self, timeout_s: float) -> list[Event]:
        """Return what has happened; wait up to `timeout_s` for the first event, and add a `Tick` as often as that.

        The tick tells of a caller who was away for longer than that, or stopped in here, behind all that ranks sent
        meanwhile."""
        came = now()
        events: list[Event] = [*self._unstarted]
        self._unstarted.clear()
        for rank in [self._waiting[number] for number, _ in self._poll.poll(timeout_s * 1000)]:
            if rank < 0:
                events.append(self._take_reduced())
            elif rank in self._channels:
                events += self._hear(rank)
        at = now()
        if at - self._ticked >= timeout_s:
            self._ticked = at
            away = came - self._left + max(at - came - timeout_s, 0.0)
            events.append(Tick(at, away if away > timeout_s else 0.0))
        self._left = now()
        return events

    def _connect(self, rank: int, channel: Channel) -> None:
        number = channel.connection.fileno()
        self._channels[rank], self._waiting[number] = channel, rank
        self._poll.register(number, select.POLLIN)

    def _hang_up(self, rank: int) -> None:
        channel = self._channels.pop(rank)
        number = channel.connection.fileno()
        del self._waiting[number]
        self._poll.unregister(number)
        channel.close()

    def _take_reduced(self) -> Reduced:
        self._wake.recv_bytes()
        return averaged(self._reduced.pop(0))

    def _hear(self, rank: int) -> list[Event]:
        try:
            events = self._channels[rank].receive(0.0)
            for event in events:
                if not isinstance(event, RankEvent) or event.rank != rank:
                    raise ProtocolError(f"rank {rank} sent what is not for it to say: {event}")
                if isinstance(event, Finished):
                    self._finished.add(rank)
                elif isinstance(event, Joined):
                    self._coming.discard(rank)
            return events
        except PeerGone:
            self._hang_up(rank)
            if rank in self._finished:  # others may take longer to lay down what they kept
                return []
            return [Lost(now(), rank, self._runners[rank].exit_reason())]
