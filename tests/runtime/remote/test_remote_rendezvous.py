"""Rendezvous and node agents against peers that are slow, broken, gone or hostile. Sockets on loopback, no processes."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddp.core.errors import OutOfResources, RankLost
from ddp.process.scratch import scratch
from ddp.remote import agent, launched_node, rendezvous
from ddp.remote.agent import NodeAgent, RankAssignment, connect
from ddp.remote.file_mirror import FileMirror, from_rank
from ddp.remote.handshake import MAGIC, introduce
from ddp.remote.link import FrameKind
from ddp.remote.rendezvous import Company, RemoteRank, RendezvousServer
from ddp.remote.wire import LinkLost
from tests.runtime.remote.loopback import KEY, RUN, for_ever


@pytest.fixture
def company() -> Iterator[RendezvousServer]:
    """Awaits ranks 1 and 2 of three, on two hosts."""
    there = RendezvousServer(Company(RUN, KEY, 3, 2, 2, "127.0.0.1:1", {}), "127.0.0.1")
    with closing(there):
        yield there


def post(there: RendezvousServer, rank: int = 1, node: int = 1, key: bytes = KEY) -> RankAssignment:
    return RankAssignment(there.address, key, RUN, rank, node, {})


def test_strangers_mirror_up_nobody(company: RendezvousServer) -> None:
    """Garbage, silence, half a handshake, the wrong key; and then the one who is awaited."""
    strangers = [socket.create_connection(company.address) for _ in range(20)]
    for number, line in enumerate(strangers):
        if number % 3 == 1:
            line.sendall(os.urandom(200))
        if number % 3 == 2:
            line.sendall(MAGIC + b"n" * 10)
    with pytest.raises(LinkLost, match="DDP_KEY"):
        connect(post(company, key=b"wrong" * 8), 5.0)
    wire, _ = connect(post(company), 5.0)
    assert company.peer(1, 2.0).gone == ""
    assert set(company._peers) == {1}
    wire.close()
    for line in strangers:
        line.close()


def test_who_comes_while_there_are_no_descriptors_is_met_later(
    company: RendezvousServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was the end of all meeting."""
    monkeypatch.setattr(rendezvous, "REST_S", 0.05)
    listener = company._listener
    refusals = [OSError(errno.EMFILE, "Too many open files")] * 2

    def accept() -> Any:
        if refusals:
            raise refusals.pop()
        return listener.accept()

    company._listener = SimpleNamespace(accept=accept, shutdown=listener.shutdown, close=listener.close)
    first, _ = connect(post(company), 5.0)
    second, _ = connect(post(company, 2), 5.0)
    assert not refusals
    assert company.peer(2, 5.0).gone == ""
    first.close()
    second.close()


def test_who_is_turned_away_because_of_strangers_comes_again(
    company: RendezvousServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(company, "_strangers", threading.Semaphore(1))
    stranger = socket.create_connection(company.address)
    threading.Timer(0.5, stranger.close).start()
    wire, _ = connect(post(company), 10.0)
    assert company.peer(1, 2.0).rank == 1
    wire.close()


@pytest.mark.parametrize(
    "said",
    [
        {"rank": 0, "node": 0},
        {"rank": 3, "node": 1},
        {"rank": True, "node": 1},
        {"rank": "1", "node": 1},
        {"rank": 1, "node": 2},
        {"rank": 1},
        [],
        "[" * 5000,
    ],
)
def test_one_with_the_key_that_makes_no_sense_is_turned_away(company: RendezvousServer, said: Any) -> None:
    with socket.create_connection(company.address) as line:
        wire = introduce(line, KEY, RUN)
        wire.send(FrameKind.HELLO, said.encode() if isinstance(said, str) else json.dumps(said).encode())
        with pytest.raises(LinkLost):
            for_ever(wire.receive)
    assert company._peers == {}


def test_a_rank_has_one_process(company: RendezvousServer) -> None:
    first, _ = connect(post(company), 5.0)
    company.peer(1, 2.0)
    second, _ = connect(post(company), 5.0)
    second.deadline_s = 2.0
    with pytest.raises(LinkLost, match="hung up"):
        second.receive()
    second.close()
    company.peer(1, 0.0).link.post(b"m", b"for the first")
    assert first.receive() == (b"m", b"for the first")
    first.close()


def test_one_that_does_not_come_is_named(company: RendezvousServer) -> None:
    with pytest.raises(RankLost, match=r"rank 2 did not come to 127\.0\.0\.1:\d+ within 0\.1 s"):
        company.peer(2, 0.1)


def test_one_that_came_with_another_key_is_told_where_it_is_awaited(company: RendezvousServer) -> None:
    """There it was known only that nobody had come."""
    with pytest.raises(LinkLost, match="DDP_KEY"):
        connect(post(company, key=b"wrong" * 8), 5.0)
    with pytest.raises(RankLost, match=r"rank 1 did not come .*; the last one that was turned away: .*have the key"):
        company.peer(1, 0.1)


def test_clocks_are_compared(company: RendezvousServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another host's is set right; one's own is left alone."""
    monkeypatch.setattr(rendezvous, "now", lambda: time.monotonic() + 1000.0)
    for rank, node, expected in ((1, 1, 1000.0), (2, 0, 0.0)):
        wire, clock = connect(post(company, rank, node), 5.0)
        assert clock.offset_s == pytest.approx(expected, abs=0.5)
        assert (clock.error_s > 0) == (node > 0)
        assert abs(clock.offset_s - expected) <= clock.error_s
        wire.close()


FAR = struct.pack(">HQQ", 18, 1 << 63, (1 << 63) + 1) + b"run/slices-1.jsonl" + b"x"
"""A piece beyond what a file can be."""


@pytest.mark.parametrize(
    ("kind", "body"),
    [(FrameKind.ENDED, b"[]"), (FrameKind.ENDED, b"{}"), (FrameKind.ENDED, b"[" * 5000), (FrameKind.FILE, FAR)],
)
def test_nonsense_in_a_run_ends_the_rank_that_sent_it(
    company: RendezvousServer, tmp_path: Path, kind: bytes, body: bytes
) -> None:
    wire, _ = connect(post(company), 5.0)
    peer, posted = company.peer(1, 2.0), lendable(company)
    posted._mirror = FileMirror(tmp_path, None, from_rank(1))
    peer.lend(posted, 5.0)
    wire.send(kind, body)
    assert posted.wait(10.0)
    assert "it sent what makes no sense" in posted.exit_reason()
    with pytest.raises(LinkLost):
        for_ever(wire.receive)
    wire.close()


def test_a_rank_that_is_slow_to_end_a_run_is_there_for_the_next(company: RendezvousServer) -> None:
    """What it still had to send of the one before took its time; the next run failed at once."""
    wire, _ = connect(post(company), 5.0)
    peer, first, second = company.peer(1, 2.0), lendable(company), lendable(company)
    peer.lend(first, 5.0)
    threading.Timer(0.3, wire.send, (FrameKind.ENDED, b'{"fate": "exit code 0"}')).start()
    peer.lend(second, 5.0)
    assert first.exit_reason() == "exit code 0"
    with pytest.raises(RankLost, match=r"rank 1 has not ended the run before this one within 0\.1 s"):
        peer.lend(RemoteRank(company, None, 1), 0.1)
    wire.close()
    assert second.wait(10.0)
    assert "its host is gone" in second.exit_reason()


def lendable(there: RendezvousServer) -> RemoteRank:
    """A rank of a run, as if it had been started."""
    posted = RemoteRank(there, None, 1)
    ours, posted._end = socket.socketpair()
    ours.close()
    posted._peer = there.peer(1, 2.0)
    return posted


def test_a_link_that_breaks_while_its_rank_is_lent_is_told(company: RendezvousServer) -> None:
    """Nobody was, and the run waited for five deadlines."""
    wire, _ = connect(post(company), 5.0)
    peer, told = company.peer(1, 2.0), threading.Event()

    def broken(timeout_s: float) -> bool:
        wire.close()
        return told.wait(10.0)

    peer._posted = SimpleNamespace(wait=broken, end=lambda why: told.set())
    with pytest.raises(RankLost, match="rank 1: its host is gone"):
        peer.lend(RemoteRank(company, None, 1), 5.0)


def test_asking_for_the_time_has_an_end(company: RendezvousServer) -> None:
    with socket.create_connection(company.address) as line:
        wire = introduce(line, KEY, RUN)
        wire.send(FrameKind.HELLO, b'{"rank": 1, "node": 1}')
        with pytest.raises(LinkLost):
            for_ever(lambda: (wire.send(FrameKind.CLOCK), wire.receive()))
    assert company._peers == {}


def test_an_outpost_leaves_with_the_code_that_it_is_told(company: RendezvousServer) -> None:
    wire, clock = connect(post(company), 5.0)
    peer = company.peer(1, 2.0)
    with NodeAgent(post(company), wire, clock) as there:
        threading.Timer(0.1, lambda: (company.dismiss(3), company.close())).start()
        assert there.serve() == 3
    assert peer.rank == 1


@pytest.mark.parametrize("how", ["cut", "closed", "garbage"])
def test_an_outpost_that_loses_the_coordinator_says_so(company: RendezvousServer, how: str) -> None:
    wire, clock = connect(post(company), 5.0)
    peer = company.peer(1, 2.0)
    there = NodeAgent(post(company), wire, clock)
    wire.deadline_s = 0.5
    if how == "closed":
        peer.link.close()
    elif how == "garbage":
        peer.link.wire._line.send(b"\xff" * 50)
    with (
        there,
        pytest.raises(LinkLost, match={"cut": "nothing was heard", "closed": "hung up", "garbage": "frame"}[how]),
    ):
        there.serve()


def test_an_outpost_that_cannot_start_its_rank_says_why(
    company: RendezvousServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It was a defect of the harness."""

    def gone() -> None:
        raise EOFError("unexpected EOF")

    monkeypatch.setattr(agent, "ForkedRank", lambda job, rank: SimpleNamespace(start=gone))
    wire, clock = connect(post(company), 5.0)
    with NodeAgent(post(company), wire, clock) as there:
        there._job = SimpleNamespace(scratch=tmp_path)
        with pytest.raises(OutOfResources, match="rank 1 cannot be started: the fork server is gone"):
            there._obey(FrameKind.START, b"")


def test_what_an_outpost_lacks_is_no_lost_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(*_: object) -> Any:
        raise OutOfResources("rank 1 cannot be started")

    message = {"host": "127.0.0.1", "port": 1, "run": "00"}
    instead = {"announced": lambda *_: message, "connect": lacking}
    for name in ("open_store", "at_parents_end", "forkserver.warm", *instead):
        monkeypatch.setattr(f"ddp.remote.launched_node.{name}", instead.get(name, lambda _: None))
    place: Any = SimpleNamespace(nodes=1, rank=1, node=1, local_rank=0, host_ranks=1, launcher="slurm")
    with pytest.raises(OutOfResources, match="rank 1 cannot be started"):
        launched_node.serve_rank0(place, KEY, {}, ())


def test_an_outpost_that_is_interrupted_twice_leaves_no_files(company: RendezvousServer) -> None:
    def again() -> None:
        raise KeyboardInterrupt

    wire, clock = connect(post(company), 5.0)
    there = NodeAgent(post(company), wire, clock)
    folder = there._scratch.enter_context(scratch())
    there._run = SimpleNamespace(end=again)
    with pytest.raises(KeyboardInterrupt), there:
        raise KeyboardInterrupt
    assert not folder.exists()


def test_nobody_there_is_an_error_in_bounded_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    with pytest.raises(LinkLost, match=f"no coordinator at 127.0.0.1:{address[1]}"):
        connect(RankAssignment(address, KEY, RUN, 1, 1, {}), 0.3)


def test_nobody_asks_for_the_time_more_often_than_it_is_told() -> None:
    assert agent.CLOCK_PROBES < rendezvous.MOST_CLOCK_PROBES
