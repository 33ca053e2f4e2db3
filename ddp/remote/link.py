"""A connection between the coordinator and a node agent, with what both ends have in common: a sending thread, heartbeats,
and relaying a rank's messages together with their files."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection

from ddp.core.errors import EngineError
from ddp.process.channel import LIMIT
from ddp.process.codec import decode
from ddp.remote.file_mirror import CHECKPOINT, FileMirror, goes_along
from ddp.remote.wire import Wire

MOST_BEAT_S = 5.0
IDLE_S = 60.0
"""Deadline of a link in seconds, until a run sets its own."""
REST_S = 1.0
Frame = tuple[bytes, bytes]


class FrameKind:
    """Kinds of frames, each a letter."""

    BEAT, MESSAGE, FILE = b".", b"m", b"f"
    """Heartbeat; message from or to the rank; piece of a file."""
    HELLO, CLOCK, THERE = b"h", b"c", b"r"
    """Introduction of an agent: see `rendezvous`."""
    ORDER, START, KILL = b"o", b"s", b"k"
    """Prepare this job (its files follow); start it; kill its rank."""
    ENDED, GOODBYE = b"e", b"g"
    """The rank has ended and all of its files were sent; the end of all runs."""


class Link:
    """Sends posted frames in order, from its own thread. The owner reads the wire."""

    def __init__(self, wire: Wire, name: str) -> None:
        self.wire = wire
        wire.deadline_s = IDLE_S
        self._outbox: queue.SimpleQueue[Iterable[Frame] | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name=f"to {name}", daemon=True)
        self._writer.start()

    def post(self, kind: bytes, body: bytes | dict[str, object] = b"") -> None:
        """Queue a frame."""
        self._outbox.put(((kind, body if isinstance(body, bytes) else json.dumps(body).encode()),))

    def post_all(self, frames: Iterable[Frame]) -> None:
        """Queue several frames, which are generated when they are sent."""
        self._outbox.put(frames)

    def expect(self, deadline_s: float) -> None:
        """Set the deadline from now on. The link sends heartbeats accordingly."""
        self.wire.deadline_s = deadline_s
        self.post(FrameKind.BEAT)  # wakes the writer, which may wait for a longer time

    def flush(self, patience_s: float) -> None:
        """Wait until the queued frames are sent, or the link is lost, at most `patience_s` seconds."""
        sent = threading.Event()

        def nothing() -> Iterator[Frame]:
            sent.set()
            yield from ()

        self._outbox.put(nothing())
        until = time.monotonic() + patience_s
        while self._writer.is_alive() and not sent.wait(0.05) and time.monotonic() < until:
            continue

    def close(self) -> None:
        """Close the connection."""
        self._outbox.put(None)
        self.wire.close()

    def _write(self) -> None:
        try:
            while True:
                try:
                    frames = self._outbox.get(timeout=min(self.wire.deadline_s / 5, MOST_BEAT_S))
                except queue.Empty:
                    frames = ((FrameKind.BEAT, b""),)
                if frames is None:
                    return
                for kind, body in frames:
                    self.wire.send(kind, body)
        except (EngineError, OSError) as error:  # also the OSError of a file that is sent
            self.wire.hang_up(str(error))  # the reading thread raises it


def message(line: bytes, mirror: FileMirror | None) -> Iterator[Frame]:
    """Yield the frames of a rank's message. If the two ends do not share files, the files that it refers to come first."""
    if mirror is not None:
        for pattern in goes_along(decode(line)):
            for body in mirror.pieces(pattern):
                yield FrameKind.FILE, body
            if pattern.startswith(CHECKPOINT):
                mirror.forget(pattern)
    yield FrameKind.MESSAGE, line


def pump(pipe: Connection, link: Link, mirror: FileMirror | None, rest: Callable[[], None] | None = None) -> None:
    """Relay messages from a rank, or to it, until the pipe is closed. `rest` is called every `REST_S` seconds."""
    rested = time.monotonic()
    with suppress(EOFError, OSError):
        while True:
            if pipe.poll(REST_S):
                link.post_all(message(pipe.recv_bytes(LIMIT), mirror))
            if rest is not None and time.monotonic() - rested >= REST_S:
                rest()
                rested = time.monotonic()
