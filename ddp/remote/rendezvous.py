"""The coordinator's side: accepts node agents that prove the key, and assigns each to one rank of a run.

A new connection proves the key (`handshake`), names its rank (HELLO), asks for the time a few times (CLOCK) and reports
that it is ready (THERE). A connection that fails to do so in time is closed; it does not delay others.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

from ddp.checkpoint import checkpoint
from ddp.core.errors import EngineError, ProtocolError, RankLost
from ddp.process.clock import now
from ddp.remote import job_message
from ddp.remote.file_mirror import RESUME, FileMirror, from_rank, read
from ddp.remote.handshake import PATIENCE_S, welcome
from ddp.remote.link import REST_S, Frame, FrameKind, Link, pump
from ddp.remote.wire import LinkLost, Silent, Wire
from ddp.replica.task import Job

STRANGERS = 64
"""Maximum number of simultaneous handshakes. Further connections are closed, and may try again."""
COMING_S = 60.0
"""Minimum number of seconds that the run waits for a node agent; five deadlines if that is longer."""
MOST_CLOCK_PROBES = 64


@dataclass(frozen=True)
class Company:
    """The expected node agents."""

    run: bytes
    """Identifies this run; part of every proof."""
    key: bytes
    world_size: int
    nodes: int
    host_ranks: int
    """Number of ranks on each host, as known on this one."""
    meet: str
    """Address of the store of all hosts."""
    catalogue: job_message.Catalogue


class RendezvousServer:
    """All node agents of this command. It listens from its construction on."""

    def __init__(self, company: Company, address: str) -> None:
        """Start to listen. Raises OSError for an address that this host does not have."""
        self._company = company
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family, backlog=128)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._peers: dict[int, AgentConnection] = {}
        self._came = threading.Condition()
        self._strangers = threading.Semaphore(STRANGERS)
        self._closed = threading.Event()
        self._refused = ""
        threading.Thread(target=self._listen, name="rendezvous", daemon=True).start()

    def prepare_job(self, job: Job) -> Job:
        """Return the job for its ranks: without the parent's own fields, and with a meeting place for this run only."""
        company = self._company
        meet = f"{company.meet}/{secrets.token_hex(8)}" if company.nodes > 1 else ""
        return replace(job, elsewhere=None, meet=meet, host_ranks=company.host_ranks if company.nodes > 1 else 0)

    def runner(self, job: Job, rank: int) -> RemoteRank:
        """Return the process that runs `rank` of the job."""
        return RemoteRank(self, job, rank)

    def peer(self, rank: int, timeout_s: float) -> AgentConnection:
        """Return the node agent of a rank; wait for it if it has not connected yet. Raises RankLost."""
        with self._came:
            if not self._came.wait_for(lambda: rank in self._peers, timeout_s):
                where = "{}:{}".format(*self.address)
                raise RankLost(f"rank {rank} did not come to {where} within {timeout_s:g} s{self._refused}")
            return self._peers[rank]

    def order(self, job: Job, here: bool) -> bytes:
        """Encode `job` for a node agent. Raises ValueError for a task that cannot be sent."""
        return job_message.encode(job, self._company.catalogue, here)

    def dismiss(self, code: int) -> None:
        """Announce the end with this exit code. Node agents exit when this process ends or `close` is called."""
        peers = self._present()
        for peer in peers:
            peer.link.post(FrameKind.GOODBYE, {"code": code})
        for peer in peers:
            peer.link.flush(PATIENCE_S)

    @property
    def absent(self) -> list[int]:
        """Return the ranks whose node agents have not connected."""
        return sorted(set(range(1, self._company.world_size)) - {peer.rank for peer in self._present()})

    @property
    def cut_off(self) -> list[int]:
        """Return the ranks on other hosts that went silent."""
        return sorted(peer.rank for peer in self._present() if peer.silent and not peer.here)

    def _present(self) -> list[AgentConnection]:
        with self._came:
            return list(self._peers.values())

    def close(self) -> None:
        """Close all connections."""
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for peer in self._present():
            peer.link.close()

    def _listen(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except ConnectionError:
                continue
            except OSError:  # closed, or temporarily out of file descriptors
                if self._closed.wait(REST_S):
                    return
                continue
            if not self._strangers.acquire(blocking=False):
                line.close()
                continue
            threading.Thread(target=self._meet, args=(line,), name="stranger", daemon=True).start()

    def _meet(self, line: socket.socket) -> None:
        try:
            wire = welcome(line, self._company.key, self._company.run)
            rank, node = self._introduced(wire)
        except Exception as error:  # an error of a stranger must only end its own connection
            self._refused = f"; the last one that was turned away: {error}"
            line.close()
            return
        finally:
            self._strangers.release()
        with self._came:
            if rank in self._peers:  # this rank has a process already
                wire.close()
                return
            self._peers[rank] = AgentConnection(wire, rank, here=node == 0)
            self._came.notify_all()

    def _introduced(self, wire: Wire) -> tuple[int, int]:
        """Receive (rank, index of its host). Raises LinkLost, ValueError and others for an invalid introduction."""
        kind, body = wire.receive()
        hello = json.loads(body)
        rank, node = hello["rank"], hello["node"]
        sound = kind == FrameKind.HELLO and type(rank) is int and 0 < rank < self._company.world_size
        if not sound or type(node) is not int or not 0 <= node < self._company.nodes:
            raise ValueError(f"{body[:100]!r}")
        for _ in range(MOST_CLOCK_PROBES):
            kind, _ = wire.receive()
            if kind == FrameKind.THERE:
                return rank, node
            wire.send(FrameKind.CLOCK, json.dumps(now()).encode())
        raise ValueError("it asks for the time without an end")


class AgentConnection:
    """A connected node agent. It serves one rank of one run at a time."""

    def __init__(self, wire: Wire, rank: int, here: bool) -> None:
        self.rank, self.here = rank, here
        """Whether the agent is on this host and sees its files."""
        self.link = Link(wire, f"rank {rank}")
        self.gone = ""
        """Why the connection ended; empty: it is open."""
        self.silent = False
        self._posted: RemoteRank | None = None
        threading.Thread(target=self._read, name=f"from rank {rank}", daemon=True).start()

    def lend(self, posted: RemoteRank, deadline_s: float) -> None:
        """Pass all further frames of this agent to `posted`. Raises RankLost."""
        if self._posted is not None and not self._posted.wait(deadline_s):
            raise RankLost(f"rank {self.rank} has not ended the run before this one within {deadline_s:g} s")
        self._posted = posted  # first: from now on, the reading thread reports a lost link to it
        if self.gone:
            raise RankLost(f"rank {self.rank}: {self.gone}")
        self.link.expect(deadline_s)

    def _read(self) -> None:
        try:
            while True:
                kind, body = self.link.wire.receive()
                if self._posted is not None:
                    self._posted.take(kind, body)
        except (EngineError, OSError) as error:
            self.silent = isinstance(error, Silent)
            self.gone = f"its host is gone ({error})" if isinstance(error, LinkLost) else f"{error}"
        except Exception as error:  # an invalid frame must only end this agent's rank
            self.gone = f"it sent what makes no sense ({type(error).__name__}: {error})"
        self.link.close()
        if self._posted is not None:
            self._posted.end(self.gone)


class RemoteRank:
    """A rank whose process belongs to a node agent, with the interface that `RankProcesses` needs."""

    def __init__(self, rendezvous: RendezvousServer, job: Job, rank: int) -> None:
        self._rendezvous, self._job, self._rank = rendezvous, job, rank
        self._over = threading.Event()
        self._why = ""
        self._peer: AgentConnection | None = None
        self._mirror: FileMirror | None = None

    def start(self) -> Connection:
        """Send the job to the node agent. Return the pipe to the rank. Raises RankLost, ValueError."""
        job = self._job
        peer = self._rendezvous.peer(self._rank, max(COMING_S, 5 * job.deadline_s))
        if not peer.here:
            self._mirror = FileMirror(job.scratch, job.checkpoint_folder, from_rank(self._rank))
        ordered = self._rendezvous.order(job, peer.here)
        ours, self._end = socket.socketpair()
        self._theirs = Connection(os.dup(self._end.fileno()))
        peer.lend(self, job.deadline_s)
        self._peer = peer
        peer.link.post(FrameKind.ORDER, ordered)
        if not peer.here and job.resume is not None:
            for name in checkpoint.names(job.resume):
                peer.link.post_all(_file(job.resume / name, f"{RESUME}/{name}"))
        peer.link.post(FrameKind.START)
        threading.Thread(target=self._pump, args=(peer.link,), name=f"for rank {self._rank}", daemon=True).start()
        return Connection(ours.detach())

    def _pump(self, link: Link) -> None:
        pump(self._theirs, link, self._mirror)
        self._theirs.close()

    def take(self, kind: bytes, body: bytes) -> None:
        """Handle a frame of the node agent. Raises ProtocolError, OSError."""
        if kind == FrameKind.MESSAGE:
            with suppress(OSError):  # the pipe is closed
                self._theirs.send_bytes(body if self._mirror is None else self._mirror.amended(body))
        elif kind == FrameKind.FILE and self._mirror is not None:
            if not self._over.is_set():
                self._mirror.take(body)
        elif kind == FrameKind.ENDED:
            self.end(str(json.loads(body)["fate"]))
        elif kind == FrameKind.FILE or kind in (FrameKind.ORDER, FrameKind.START, FrameKind.KILL, FrameKind.GOODBYE):
            raise ProtocolError(f"it sent what is not for it to send: {kind!r}")

    def end(self, why: str) -> None:
        """Note that the rank has ended, and why."""
        self._why = self._why or why
        self._over.set()
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)  # wakes both readers
        self._end.close()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the rank. Returns whether it has ended and all of its files have arrived."""
        return self._peer is None or self._over.wait(timeout_s)

    def kill(self) -> None:
        """Ask the node agent to kill the rank, without waiting."""
        if self._peer is not None:
            self._peer.link.post(FrameKind.KILL)

    def exit_reason(self) -> str:
        """Return why the rank has ended, as reported by its node agent, or why the connection to that ended."""
        self.wait(1.0)
        return self._why or "it has hung up"


def _file(path: Path, name: str) -> Iterator[Frame]:
    for piece in read(path, name):
        yield FrameKind.FILE, piece
