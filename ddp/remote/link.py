"""One connection between the coordinator and a node agent, and what both ends do alike: send from one thread, say now and
then that they are there, pass on a rank's messages with the files that go along."""

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
"""Deadline of a link until a run sets its own."""
REST_S = 1.0
Frame = tuple[bytes, bytes]


class FrameKind:
    """The letters of frames."""

    BEAT, MESSAGE, FILE = b".", b"m", b"f"
    """A sign of life; a message of or for the rank; a piece of a file."""
    HELLO, CLOCK, THERE = b"h", b"c", b"r"
    """How an agent introduces itself: see `rendezvous`."""
    ORDER, START, KILL = b"o", b"s", b"k"
    """Run this job, once the files that follow are there; now; end its rank."""
    ENDED, GOODBYE = b"e", b"g"
    """The rank has ended, and all that it left was sent; all is over."""


class Link:
    """Sends what is posted, in order. Who reads the wire is the owner's business."""

    def __init__(self, wire: Wire, name: str) -> None:
        self.wire = wire
        wire.deadline_s = IDLE_S
        self._outbox: queue.SimpleQueue[Iterable[Frame] | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name=f"to {name}", daemon=True)
        self._writer.start()

    def post(self, kind: bytes, body: bytes | dict[str, object] = b"") -> None:
        """Send a frame when it is its turn."""
        self._outbox.put(((kind, body if isinstance(body, bytes) else json.dumps(body).encode()),))

    def post_all(self, frames: Iterable[Frame]) -> None:
        """Send several, which are made when it is their turn."""
        self._outbox.put(frames)

    def expect(self, deadline_s: float) -> None:
        """Set the deadline from here on; the link beats as often as that asks for."""
        self.wire.deadline_s = deadline_s
        self.post(FrameKind.BEAT)  # the writer may be in the middle of a longer rest

    def flush(self, patience_s: float) -> None:
        """Wait until what was posted is sent, or the link is lost."""
        sent = threading.Event()

        def nothing() -> Iterator[Frame]:
            sent.set()
            yield from ()

        self._outbox.put(nothing())
        until = time.monotonic() + patience_s
        while self._writer.is_alive() and not sent.wait(0.05) and time.monotonic() < until:
            continue

    def close(self) -> None:
        """Hang up."""
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
        except (EngineError, OSError) as error:  # of a file that goes along as well
            self.wire.hang_up(str(error))  # whoever reads finds out


def message(line: bytes, mirror: FileMirror | None) -> Iterator[Frame]:
    """Iterate over the frames of a rank's message: ahead of it what goes along, where two ends see not the same files."""
    if mirror is not None:
        for pattern in goes_along(decode(line)):
            for body in mirror.pieces(pattern):
                yield FrameKind.FILE, body
            if pattern.startswith(CHECKPOINT):
                mirror.forget(pattern)
    yield FrameKind.MESSAGE, line


def pump(pipe: Connection, link: Link, mirror: FileMirror | None, rest: Callable[[], None] | None = None) -> None:
    """Pass on what comes from a rank, or for it, until the pipe ends. `rest` is called every `REST_S`."""
    rested = time.monotonic()
    with suppress(EOFError, OSError):
        while True:
            if pipe.poll(REST_S):
                link.post_all(message(pipe.recv_bytes(LIMIT), mirror))
            if rest is not None and time.monotonic() - rested >= REST_S:
                rest()
                rested = time.monotonic()
