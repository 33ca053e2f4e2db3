"""The ranks' processes as the parent sees them: forked from the fork server, connected by channels, never left behind.

A rank whose process somebody else provides looks the same from here: a channel, and an object that can kill it."""

from __future__ import annotations

import select
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Protocol

from ddp.core.errors import OutOfResources, ProtocolError, RankLost, ReduceFailed, encodable
from ddp.core.messages.commands import RankCommand
from ddp.core.messages.events import Event, Finished, Lost, RankEvent, Ready, Reduced, Tick
from ddp.core.messages.join_events import Joined, Offered
from ddp.engine.forked_rank import EXIT_TIMEOUT_S, ForkedRank
from ddp.engine.spare_ranks import SpareProcesses
from ddp.process import forkserver
from ddp.process.channel import BufferedChannel, PeerGone
from ddp.process.clock import now
from ddp.process.resource_errors import descriptors, enough
from ddp.replica.task import Job, RankProcess

ORPHAN_S = 0.1
"""Seconds to wait for the end of a rank whose fork server is gone."""
OFFERS = "offer-*"
"""Pattern of files that offer processes for ranks."""


class Ranks(Protocol):
    """The ranks as the coordinator's loop sees them: processes, threads, or simulated ranks."""

    def events(self, timeout_s: float) -> Sequence[Event]:
        """Return what has happened; wait up to `timeout_s` for the first event; add a `Tick` every `timeout_s`."""
        ...

    def send(self, command: RankCommand) -> None:
        """Send an order to its rank. If the rank is gone, `events` reports it."""
        ...

    def drop(self, rank: int) -> None:
        """End a rank that the run continues without."""
        ...

    def restart(self, rank: int, life: int) -> None:
        """Restart a dropped rank. If that fails, `events` reports it."""
        ...


def averaged(event: Reduced | Exception) -> Reduced:
    """Return the reducer's result. Raise ReduceFailed if it is an exception."""
    if isinstance(event, Exception):
        raise ReduceFailed(f"averaging the snapshots failed: {type(event).__name__}: {event}") from event
    return event


class RankProcesses:
    """All ranks of a run. When the context exits, no process is left, whatever happened."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._ticked = self._left = now()
        with enough(f"{job.world_size} ranks cannot be started"):
            if job.elsewhere is None:
                descriptors(job.world_size)
            self._wake, self._bell = Pipe(duplex=False)
        self._poll, self._waiting = select.poll(), {self._wake.fileno(): -1}
        """File descriptor -> rank at the other end; -1: the reducer."""
        self._poll.register(self._wake.fileno(), select.POLLIN)
        self._reduced: list[Reduced | Exception] = []
        self._finished: set[int] = set()
        self._coming: set[int] = set()
        """Ranks that were restarted and have not joined yet."""
        self._unstarted: list[Lost] = []
        self._ready = 0
        self._spares = SpareProcesses(job)

    def __enter__(self) -> RankProcesses:
        self._channels: dict[int, BufferedChannel] = {}
        self._runners: dict[int, RankProcess] = {}
        elsewhere = self._job.elsewhere
        try:
            self._own = own = self._job if elsewhere is None else elsewhere.prepare_job(self._job)
            for rank in range(self._job.world_size - self._job.absent):
                here = elsewhere is None or rank == 0
                with enough(f"rank {rank} cannot be started"):
                    runner = ForkedRank(own, rank) if here or elsewhere is None else elsewhere.runner(own, rank)
                    self._runners[rank] = runner
                    self._connect(rank, runner.start())
        except BaseException:
            self._end(0.0)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(EXIT_TIMEOUT_S if kind is None else 0.0)

    def _end(self, patience_s: float) -> None:
        try:
            self._spares.end()
            for rank in self._coming:  # the run ended before they joined
                self._runners[rank].kill()
            for runner in self._runners.values():
                if not runner.wait(patience_s):
                    runner.kill()
            for runner in self._runners.values():
                runner.wait(EXIT_TIMEOUT_S)
        except BaseException:  # a second interrupt
            for runner in self._runners.values():
                runner.kill()
            raise
        finally:
            for channel in self._channels.values():
                channel.close()
            self._wake.close()
            self._bell.close()

    def reduced(self, event: Reduced | Exception) -> None:
        """Receive the result of the reducer's thread; wakes `events`."""
        self._reduced.append(event)
        self._bell.send_bytes(b".")

    def send(self, command: RankCommand) -> None:
        """Send an order, at once or as soon as the channel has room. If the rank is gone, `events` reports it."""
        channel = self._channels.get(command.rank)
        if channel is not None:
            channel.send(command)
            if channel.left:
                self._watch(command.rank)

    def drop(self, rank: int) -> None:
        """Kill a rank that the run continues without, whatever state it is in."""
        if rank in self._channels:
            self._hang_up(rank)
        if rank in self._runners:  # none if it could not be created
            self._runners[rank].kill()

    def restart(self, rank: int, life: int) -> None:
        """Restart a rank once its process has ended. If that fails, it is reported as lost."""
        if rank in self._runners:
            self._runners[rank].wait(EXIT_TIMEOUT_S)
        elsewhere, job, spare = self._job.elsewhere, replace(self._own, life=life), self._spares.take(rank, life)
        try:
            if spare is not None:
                self._runners[rank] = spare
                self._connect(rank, spare.connection)
            else:
                with enough("no process for it"):
                    here = elsewhere is None or rank == 0
                    runner = ForkedRank(job, rank) if here or elsewhere is None else elsewhere.runner(job, rank)
                    self._runners[rank] = runner
                    self._connect(rank, runner.start())
            self._coming.add(rank)
        except (OSError, OutOfResources, RankLost) as error:
            self._unstarted.append(Lost(now(), rank, f"it cannot be started again: {error}"))

    def events(self, timeout_s: float) -> list[Event]:
        """Return what has happened; wait up to `timeout_s` for the first event; add a `Tick` every `timeout_s`.

        The tick comes after all events that ranks sent before. It says how long the caller, or this process, was away."""
        came = now()
        events: list[Event] = [*self._unstarted]
        self._unstarted.clear()
        for rank, ready in [(self._waiting[number], ready) for number, ready in self._poll.poll(timeout_s * 1000)]:
            if rank < 0:
                events.append(self._take_reduced())
                continue
            if rank not in self._channels:  # an orphan, heard before its turn
                continue
            if ready & select.POLLOUT:
                self._channels[rank].flush()
                self._watch(rank)
            if ready & ~select.POLLOUT:
                events += self._hear(rank)
        at = now()
        if at - self._ticked >= timeout_s:
            self._ticked = at
            away = came - self._left + max(at - came - timeout_s, 0.0)
            events.append(Tick(at, away if away > timeout_s else 0.0))
            events += self._offered()
        self._left = now()
        return events

    def _connect(self, rank: int, connection: Connection) -> None:
        self._channels[rank], self._waiting[connection.fileno()] = BufferedChannel(connection), rank
        self._watch(rank)

    def _watch(self, rank: int) -> None:
        """Poll for messages from the rank, and for room if some orders could not be sent yet."""
        channel = self._channels[rank]
        self._poll.register(channel.connection.fileno(), select.POLLIN | (select.POLLOUT if channel.left else 0))

    def _hang_up(self, rank: int) -> None:
        channel = self._channels.pop(rank)
        number = channel.connection.fileno()
        del self._waiting[number]
        self._poll.unregister(number)
        channel.close()

    def _offered(self) -> list[Offered]:
        """Return the new offers of processes; not those that are withdrawn at the same time, and what else has such a
        name."""
        events = []
        for path in self._job.offers.glob(OFFERS) if self._job.offers is not None else ():
            with suppress(OSError):
                path.unlink()
                events.append(Offered(now(), encodable(path.name)))
        return events

    def _take_reduced(self) -> Reduced:
        self._wake.recv_bytes()
        return averaged(self._reduced.pop(0))

    def _hear(self, rank: int, timeout_s: float = 0.0) -> list[Event]:
        """Return what a rank has sent, or its loss. If the fork server is gone, also the losses of its other ranks."""
        try:
            events = self._channels[rank].receive(timeout_s)
            for event in events:
                if not isinstance(event, RankEvent) or event.rank != rank:
                    raise ProtocolError(f"rank {rank} sent what is not for it to say: {event}")
                if isinstance(event, Finished):
                    self._finished.add(rank)
                elif isinstance(event, Joined):
                    self._coming.discard(rank)
                elif isinstance(event, Ready):
                    self._ready += 1
                    if self._ready == self._job.world_size - self._job.absent:
                        self._spares.start()  # not earlier: ranks have priority
            return events
        except PeerGone:
            self._hang_up(rank)
            done = rank in self._finished  # others may take longer to write their files
            events = [] if done else [Lost(now(), rank, self._runners[rank].exit_reason())]
            if not done and forkserver.ended():
                events += self._orphans()
            return events

    def _orphans(self) -> list[Event]:
        """Return what the other ranks of a fork server that is gone sent last, and their losses."""
        events, until = list[Event](), now() + EXIT_TIMEOUT_S
        for rank, runner in self._runners.items():
            while isinstance(runner, ForkedRank) and rank in self._channels and now() < until:
                events += self._hear(rank, ORPHAN_S)
        return events
