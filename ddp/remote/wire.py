"""Frames over a connection: authenticated, in order, not repeated, of limited size, and never awaited without a deadline.

A frame is its length (4 bytes), a letter for its kind, the body and a tag: HMAC-SHA256, with a key of this connection and
direction, of the frame's number, kind and body. Nothing is encrypted, nothing unpickled. Knows nothing of the content.
"""

from __future__ import annotations

import hashlib
import hmac
import select
import socket
import struct
import time
from contextlib import suppress
from typing import NamedTuple

from ddp.core.errors import EngineError

MOST = (1 << 20) + (1 << 12)
"""Maximum size of a body in bytes: the largest message, or a piece of a file."""
TAG = 16
_LENGTH, _NUMBER = struct.Struct(">I"), struct.Struct(">Q")
_READ = 1 << 18
_CLOSED = "the connection is closed"


class LinkLost(EngineError):
    """The other end is gone, silent, or not authentic; the message says which."""


class Silent(LinkLost):
    """Nothing was received from, or could be sent to, the other end for too long: the link may be broken."""


class Keys(NamedTuple):
    """The keys of one connection, from one end's point of view."""

    sending: bytes
    receiving: bytes


class Wire:
    """One end of a connection. One thread may send while another receives."""

    def __init__(self, line: socket.socket, keys: Keys, deadline_s: float) -> None:
        self._line, self._keys = line, keys
        self.deadline_s = deadline_s
        """Seconds within which a frame must be sent, and the next one must arrive."""
        self._sent = self._received = 0
        self._buffer = bytearray()
        self._heard = time.monotonic()
        self._lost: LinkLost | None = None
        line.setblocking(False)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, kind: bytes, body: bytes = b"") -> None:
        """Send one frame. After LinkLost, `receive` raises it too, once it has returned the frames that had arrived."""
        assert len(body) <= MOST, f"a frame of {len(body)} bytes"
        tag = _tag(self._keys.sending, self._sent, kind, body)
        self._sent += 1
        left = memoryview(b"".join((_LENGTH.pack(len(body)), kind, body, tag)))
        until = time.monotonic() + self.deadline_s
        while left:
            try:
                left = left[self._line.send(left) :]
            except BlockingIOError:
                self._wait(select.POLLOUT, until, Silent(f"it took nothing for {self.deadline_s:.1f} s"))
            except OSError as error:
                raise self._first(LinkLost(_reason(error))) from error

    def receive(self) -> tuple[bytes, bytes]:
        """Return (kind, body) of the next frame. Raises LinkLost, also if no complete frame arrives within the deadline."""
        while (frame := self._whole()) is None:
            silent = Silent(f"nothing was heard for {self.deadline_s:.1f} s")
            self._wait(select.POLLIN, self._heard + self.deadline_s, silent)
            try:
                more = self._line.recv(_READ)
            except BlockingIOError:
                continue
            except OSError as error:
                raise self._first(LinkLost(_reason(error))) from error
            if not more:
                raise self._first(LinkLost("it hung up"))
            self._buffer += more
        return frame

    def _wait(self, event: int, until: float, late: Silent) -> None:
        poll = select.poll()
        try:
            poll.register(self._line, event)
        except (OSError, ValueError) as error:  # another thread has closed it
            raise self._first(LinkLost(_CLOSED)) from error
        left = max(until - time.monotonic(), 0.0)  # this end may have been busy: poll once even if the time is over
        if not poll.poll(left * 1000):
            raise self._first(late)

    def _first(self, lost: LinkLost) -> LinkLost:
        """Keep the first reason why the link was lost: errors of the other thread follow from it."""
        self._lost = self._lost or lost
        return self._lost

    def _whole(self) -> tuple[bytes, bytes] | None:
        """Return the first complete frame in the buffer; None if there is none."""
        head = _LENGTH.size
        if len(self._buffer) < head:
            return None
        size = _LENGTH.unpack_from(self._buffer)[0]
        if size > MOST:
            raise LinkLost(f"it sent a frame of {size} bytes, {MOST} are allowed")
        end = head + 1 + size + TAG
        if len(self._buffer) < end:
            return None
        kind, body = bytes(self._buffer[head : head + 1]), bytes(self._buffer[head + 1 : end - TAG])
        tag = _tag(self._keys.receiving, self._received, kind, body)
        if not hmac.compare_digest(tag, bytes(self._buffer[end - TAG : end])):
            raise LinkLost("it sent a frame that is not authentic")
        del self._buffer[:end]
        self._received += 1
        self._heard = time.monotonic()
        return kind, body

    def hang_up(self, why: str) -> None:
        """Shut the connection down; sending and receiving threads raise LinkLost with `why`. Frames that have arrived can
        still be read."""
        self._first(LinkLost(why))
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self.hang_up(_CLOSED)
        self._line.close()


def _tag(key: bytes, number: int, kind: bytes, body: bytes) -> bytes:
    return hmac.digest(key, _NUMBER.pack(number) + kind + body, hashlib.sha256)[:TAG]


def _reason(error: OSError) -> str:
    return "it hung up" if isinstance(error, BrokenPipeError) else error.strerror or str(error)
