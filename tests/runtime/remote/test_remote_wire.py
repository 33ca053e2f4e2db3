"""Frames and links against peers that are slow, broken, gone or hostile. Sockets on loopback, no processes."""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ddp.remote.file_mirror import read
from ddp.remote.link import MOST_BEAT_S, FrameKind, Link
from ddp.remote.wire import MOST, TAG, Keys, LinkLost, Wire
from tests.runtime.remote.loopback import for_ever

KEYS = Keys(b"down", b"up")


def wires(lines: tuple[socket.socket, socket.socket], deadline_s: float = 5.0) -> tuple[Wire, Wire]:
    return Wire(lines[0], KEYS, deadline_s), Wire(lines[1], Keys(*reversed(KEYS)), deadline_s)


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
    with pytest.raises(LinkLost, match="closed"):
        ours.receive()


def test_who_reads_is_told_what_the_writer_met_after_the_last_words(lines: Any) -> None:
    """Whichever of the two finds out first that the other end is gone."""
    ours, theirs = wires(lines)
    theirs.send(b"g", b"last words")
    theirs.close()
    link = Link(ours, "other end")
    while link._writer.is_alive():
        link.post(FrameKind.BEAT)
    assert ours.receive() == (b"g", b"last words")
    with pytest.raises(LinkLost, match=r"hung up|reset"):
        ours.receive()
    link.close()


def test_a_file_that_cannot_be_sent_ends_the_link_by_its_name(lines: Any) -> None:
    ours, _ = wires(lines)
    link = Link(ours, "other end")
    link.post_all((FrameKind.FILE, piece) for piece in read(Path("/nowhere/it"), "it"))
    with pytest.raises(LinkLost, match="/nowhere/it"):
        ours.receive()
    link.close()


def test_a_link_beats_as_often_as_its_deadline_asks_for(lines: Any) -> None:
    """Also from the middle of a long rest on; before, an idle link is not lost for its silence."""
    ours, theirs = wires(lines)
    link = Link(ours, "other end")
    assert ours.deadline_s >= 3 * MOST_BEAT_S
    time.sleep(0.1)
    link.expect(2.0)
    theirs.deadline_s = 2.0
    assert [theirs.receive() for _ in range(3)] == [(FrameKind.BEAT, b"")] * 3
    link.close()
