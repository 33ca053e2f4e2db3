"""Frames, handshake and muster against peers that are slow, broken, gone or hostile. Sockets on loopback, no processes."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from ddp.core.errors import RankLost
from ddp.runtime.remote import handshake, muster, outpost
from ddp.runtime.remote.handshake import MAGIC, NONCE, NoProof, introduce, shared_key, welcome
from ddp.runtime.remote.link import BEAT, CLOCK, HELLO, MOST_BEAT_S, Link
from ddp.runtime.remote.muster import Company, Muster
from ddp.runtime.remote.outpost import Outpost, Post, arrive
from ddp.runtime.remote.wire import MOST, TAG, Keys, LinkLost, Wire

KEY, RUN = b"k" * 32, b"r" * 16
KEYS = Keys(b"down", b"up")


@pytest.fixture
def lines() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection over TCP."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    with ours, theirs:
        yield ours, theirs


def wires(lines: tuple[socket.socket, socket.socket], deadline_s: float = 5.0) -> tuple[Wire, Wire]:
    return Wire(lines[0], KEYS, deadline_s), Wire(lines[1], Keys(*reversed(KEYS)), deadline_s)


def for_ever(act: Callable[[], object]) -> None:
    while True:
        act()


def recorded(kind: bytes, body: bytes, keys: Keys = KEYS) -> bytes:
    """The bytes of a connection's first frame."""
    left, right = socket.socketpair(socket.AF_UNIX)
    with left, right:
        wire = Wire.__new__(Wire)
        wire._line, wire._keys, wire._sent, wire.deadline_s = left, keys, 0, 1.0
        wire.send(kind, body)
        return right.recv(1 << 16)


def test_frames_arrive_whole_and_in_order(lines: Any) -> None:
    ours, theirs = wires(lines)
    bodies = [b"", b"a", bytes(range(256)) * 4096, b"x" * MOST]
    sender = threading.Thread(target=lambda: [ours.send(b"m", body) for body in bodies])
    sender.start()
    assert [theirs.receive() for _ in bodies] == [(b"m", body) for body in bodies]
    sender.join()
    theirs.send(b"k", b"back")
    assert ours.receive() == (b"k", b"back")


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (struct.pack(">I", MOST + 1), "frame of"),
        (b"\xff\xff\xff\xff garbage", "frame of"),
        (b"GET / HTTP/1.1\r\n\r\n", "frame of"),
        (recorded(b"m", b"body")[:-1] + b"\0", "not authentic"),
        (recorded(b"m", b"body").replace(b"body", b"bodi"), "not authentic"),
        (recorded(b"m", b"body").replace(b"mbody", b"kbody"), "not authentic"),
        (recorded(b"m", b"body", Keys(b"up", b"down")), "not authentic"),
        (recorded(b"m", b"body", Keys(b"other", b"other")), "not authentic"),
    ],
)
def test_what_is_not_authentic_ends_the_connection(lines: Any, sent: bytes, why: str) -> None:
    """Too long, garbage, changed, sent back where it came from, of another connection."""
    _, theirs = wires(lines)
    lines[0].sendall(sent)
    with pytest.raises(LinkLost, match=why):
        theirs.receive()


def test_a_frame_counts_once(lines: Any) -> None:
    _, theirs = wires(lines)
    frame = recorded(b"m", b"body")
    lines[0].sendall(frame + frame)
    assert theirs.receive() == (b"m", b"body")
    with pytest.raises(LinkLost, match="not authentic"):
        theirs.receive()


def test_an_oversized_frame_is_refused_unread(lines: Any) -> None:
    _, theirs = wires(lines)
    lines[0].sendall(struct.pack(">I", 1 << 31))
    with pytest.raises(LinkLost):
        theirs.receive()
    assert len(theirs._buffer) <= 4


def test_silence_and_one_byte_now_and_then_are_the_same(lines: Any) -> None:
    """A frame that never becomes whole holds nobody up for longer than silence would."""
    _, theirs = wires(lines, deadline_s=0.3)
    with pytest.raises(LinkLost, match="nothing was heard"):
        theirs.receive()
    stop = threading.Event()

    def drip() -> None:
        with suppress(OSError):
            for byte in recorded(b"m", b"b" * 5000):
                lines[0].send(bytes([byte]))
                if stop.wait(0.02):
                    return

    dripping = threading.Thread(target=drip)
    dripping.start()
    theirs._heard = time.monotonic()
    with pytest.raises(LinkLost, match="nothing was heard"):
        theirs.receive()
    stop.set()
    dripping.join()


def test_what_came_while_this_end_was_busy_is_not_taken_for_silence(lines: Any) -> None:
    ours, theirs = wires(lines, deadline_s=0.05)
    ours.send(b"m", b"in time")
    time.sleep(0.1)
    assert theirs.receive() == (b"m", b"in time")


def test_a_peer_that_takes_nothing_is_given_up(lines: Any) -> None:
    ours, _ = wires(lines, deadline_s=0.2)
    with pytest.raises(LinkLost, match="took nothing"):
        for_ever(lambda: ours.send(b"m", b"x" * MOST))


def test_a_connection_that_closes_is_a_lost_link(lines: Any) -> None:
    ours, theirs = wires(lines)
    ours.send(b"m", b"last words")
    lines[0].sendall(recorded(b"m", b"half")[: -TAG - 2])
    ours.close()
    assert theirs.receive() == (b"m", b"last words")
    with pytest.raises(LinkLost, match="hung up"):
        theirs.receive()
    with pytest.raises(LinkLost, match=r"closed|descriptor"):
        ours.receive()


# The handshake


def shaken(lines: Any, key: bytes = KEY, run: bytes = RUN) -> tuple[Any, Any]:
    """What becomes of both sides: a wire or an error."""
    became: list[Any] = [None, None]

    def side(place: int, act: Callable[[], Any]) -> None:
        try:
            became[place] = act()
        except LinkLost as error:
            became[place] = error
            lines[place].close()

    thread = threading.Thread(target=side, args=(1, lambda: introduce(lines[1], key, run)))
    thread.start()
    side(0, lambda: welcome(lines[0], KEY, RUN))
    thread.join()
    return became[0], became[1]


def test_two_with_one_key_believe_each_other(lines: Any) -> None:
    ours, theirs = shaken(lines)
    ours.send(b"m", b"down")
    theirs.send(b"m", b"up")
    assert (theirs.receive(), ours.receive()) == ((b"m", b"down"), (b"m", b"up"))


@pytest.mark.parametrize(("key", "run"), [(b"K" * 32, RUN), (KEY, b"R" * 16)])
def test_neither_believes_one_with_another_key_or_of_another_run(lines: Any, key: bytes, run: bytes) -> None:
    ours, theirs = shaken(lines, key, run)
    assert isinstance(ours, NoProof)
    assert isinstance(theirs, NoProof)
    assert "DDP_KEY" in str(theirs)


def test_a_rank_does_not_believe_a_coordinator_without_the_key(lines: Any) -> None:
    def pretend() -> None:
        lines[0].sendall(MAGIC + b"n" * NONCE)
        lines[0].recv(1000)
        lines[0].sendall(b"p" * 32)

    thread = threading.Thread(target=pretend)
    thread.start()
    with pytest.raises(NoProof):
        introduce(lines[1], KEY, RUN)
    thread.join()


def test_what_was_overheard_opens_nothing() -> None:
    """The bytes of a rank that was believed, sent again."""
    heard: list[bytes] = []
    for replay in (False, True):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            if not replay:
                thread = threading.Thread(target=_eavesdrop, args=(theirs, heard))
            else:
                thread = threading.Thread(target=theirs.sendall, args=(heard[0],))
            thread.start()
            if replay:
                with pytest.raises(NoProof):
                    welcome(ours, KEY, RUN)
            else:
                with suppress(OSError):  # no TCP, and no need of it
                    welcome(ours, KEY, RUN)
            thread.join()


def _eavesdrop(line: socket.socket, heard: list[bytes]) -> None:
    between, end = socket.socketpair()
    with between, end:
        honest = threading.Thread(target=lambda: _quietly(lambda: introduce(end, KEY, RUN)))
        honest.start()
        between.sendall(line.recv(len(MAGIC) + NONCE))
        heard.append(between.recv(1000))
        line.sendall(heard[0])
        between.sendall(line.recv(1000))
        honest.join()


def _quietly(act: Callable[[], object]) -> None:
    with suppress(OSError):
        act()


def test_a_handshake_has_one_deadline_for_all_of_it(lines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "PATIENCE_S", 0.3)
    stop = threading.Event()

    def drip() -> None:
        for byte in MAGIC:
            if stop.wait(0.1):
                return
            lines[1].send(bytes([byte]))

    dripping = threading.Thread(target=drip)
    dripping.start()
    with pytest.raises(LinkLost, match=r"took over 0\.3 s"):
        welcome(lines[0], KEY, RUN)
    stop.set()
    dripping.join()


def test_where_the_key_comes_from(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"s" * 32 + b"\n")
    path.chmod(0o600)
    assert shared_key({"DDP_KEY_FILE": str(path), "DDP_KEY": "x" * 40}) == b"s" * 32
    assert shared_key({"DDP_KEY": "x" * 40}) == b"x" * 40
    assert shared_key({}) is None
    path.chmod(0o640)
    with pytest.raises(ValueError, match="chmod 600"):
        shared_key({"DDP_KEY_FILE": str(path)})
    for wrong in ({"DDP_KEY": "short"}, {"DDP_KEY_FILE": str(tmp_path)}, {"DDP_KEY_FILE": str(tmp_path / "none")}):
        with pytest.raises(ValueError, match="DDP_KEY"):
            shared_key(wrong)


# The muster


@pytest.fixture
def company() -> Iterator[Muster]:
    """Awaits ranks 1 and 2 of three, on two hosts."""
    there = Muster(Company(RUN, KEY, 3, 2, 2, "127.0.0.1:1", {}), "127.0.0.1")
    with closing(there):
        yield there


def post(there: Muster, rank: int = 1, node: int = 1, key: bytes = KEY) -> Post:
    return Post(there.address, key, RUN, rank, node, {})


def test_strangers_hold_up_nobody(company: Muster) -> None:
    """Garbage, silence, half a handshake, the wrong key; and then the one who is awaited."""
    strangers = [socket.create_connection(company.address) for _ in range(20)]
    for number, line in enumerate(strangers):
        if number % 3 == 1:
            line.sendall(os.urandom(200))
        if number % 3 == 2:
            line.sendall(MAGIC + b"n" * 10)
    with pytest.raises(LinkLost, match="DDP_KEY"):
        arrive(post(company, key=b"wrong" * 8), 5.0)
    wire, _ = arrive(post(company), 5.0)
    assert company.peer(1, 2.0).gone == ""
    assert set(company._peers) == {1}
    wire.close()
    for line in strangers:
        line.close()


def test_who_is_turned_away_because_of_strangers_comes_again(company: Muster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(company, "_strangers", threading.Semaphore(1))
    stranger = socket.create_connection(company.address)
    threading.Timer(0.5, stranger.close).start()
    wire, _ = arrive(post(company), 10.0)
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
def test_one_with_the_key_that_makes_no_sense_is_turned_away(company: Muster, said: Any) -> None:
    with socket.create_connection(company.address) as line:
        wire = introduce(line, KEY, RUN)
        wire.send(HELLO, said.encode() if isinstance(said, str) else json.dumps(said).encode())
        with pytest.raises(LinkLost):
            for_ever(wire.receive)
    assert company._peers == {}


def test_a_rank_has_one_process(company: Muster) -> None:
    first, _ = arrive(post(company), 5.0)
    company.peer(1, 2.0)
    second, _ = arrive(post(company), 5.0)
    second.deadline_s = 2.0
    with pytest.raises(LinkLost, match="hung up"):
        second.receive()
    second.close()
    company.peer(1, 0.0).link.post(b"m", b"for the first")
    assert first.receive() == (b"m", b"for the first")
    first.close()


def test_one_that_does_not_come_is_named(company: Muster) -> None:
    with pytest.raises(RankLost, match=r"rank 2 did not come to 127\.0\.0\.1:\d+ within 0\.1 s"):
        company.peer(2, 0.1)


def test_clocks_are_compared(company: Muster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another host's is set right; one's own is left alone."""
    monkeypatch.setattr(muster, "now", lambda: time.monotonic() + 1000.0)
    for rank, node, expected in ((1, 1, 1000.0), (2, 0, 0.0)):
        wire, clock = arrive(post(company, rank, node), 5.0)
        assert clock.lacks_s == pytest.approx(expected, abs=0.5)
        assert (clock.error_s > 0) == (node > 0)
        assert abs(clock.lacks_s - expected) <= clock.error_s
        wire.close()


def test_asking_for_the_time_has_an_end(company: Muster) -> None:
    with socket.create_connection(company.address) as line:
        wire = introduce(line, KEY, RUN)
        wire.send(HELLO, b'{"rank": 1, "node": 1}')
        with pytest.raises(LinkLost):
            for_ever(lambda: (wire.send(CLOCK), wire.receive()))
    assert company._peers == {}


def test_an_outpost_leaves_with_the_code_that_it_is_told(company: Muster) -> None:
    wire, clock = arrive(post(company), 5.0)
    peer = company.peer(1, 2.0)
    with Outpost(post(company), wire, clock) as there:
        threading.Timer(0.1, lambda: (company.dismiss(3), company.close())).start()
        assert there.serve() == 3
    assert peer.rank == 1


@pytest.mark.parametrize("how", ["cut", "closed", "garbage"])
def test_an_outpost_that_loses_the_coordinator_says_so(company: Muster, how: str) -> None:
    wire, clock = arrive(post(company), 5.0)
    peer = company.peer(1, 2.0)
    there = Outpost(post(company), wire, clock)
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


def test_a_link_beats_as_often_as_its_deadline_asks_for(lines: Any) -> None:
    """Also from the middle of a long rest on; before, an idle link is not lost for its silence."""
    ours, theirs = wires(lines)
    link = Link(ours, "other end")
    assert ours.deadline_s >= 3 * MOST_BEAT_S
    time.sleep(0.1)
    link.expect(0.5)
    theirs.deadline_s = 0.5
    assert [theirs.receive() for _ in range(6)] == [(BEAT, b"")] * 6
    link.close()


def test_nobody_there_is_an_error_in_bounded_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    with pytest.raises(LinkLost, match=f"no coordinator at 127.0.0.1:{address[1]}"):
        arrive(Post(address, KEY, RUN, 1, 1, {}), 0.3)


def test_nobody_asks_for_the_time_more_often_than_it_is_told() -> None:
    assert outpost.ASKS < muster.MOST_ASKS
