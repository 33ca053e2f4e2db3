"""The control channel: typed messages over a connection, framed as in `multiprocessing.connection`, encoded by `codec`.

Nothing is ever unpickled. `PeerGone` is raised if the peer goes away. A peer that stops in the middle of a message blocks
nobody."""

from __future__ import annotations

import os
import select
import struct
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from ddp.core.errors import EngineError
from ddp.process.codec import Record, decode, encode

LIMIT = 1 << 20
"""Largest message, bytes: a traceback is the longest."""
_LENGTH, _READ = struct.Struct("!i"), 1 << 18


class PeerGone(EngineError):
    """The other end of a channel was closed."""


class Channel:
    """One end of a duplex connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._sending, self._came = threading.Lock(), bytearray()
        self._poll = select.poll()
        self._poll.register(connection.fileno(), select.POLLIN)

    def send(self, message: Record) -> None:
        """Send one message. Raises PeerGone."""
        try:
            with self._sending:
                self.connection.send_bytes(_encoded(message))
        except OSError as error:
            raise PeerGone from error

    def receive(self, timeout_s: float) -> list[Any]:
        """Return all complete messages; wait up to `timeout_s` for new data. Raises PeerGone if the peer is gone and no
        message is left."""
        messages: list[Any] = []
        while self._poll.poll(timeout_s * 1000):
            try:
                came = os.read(self.connection.fileno(), _READ)
            except OSError:
                came = b""
            if not came:
                if messages:
                    break  # messages before the end come first
                raise PeerGone
            self._came += came
            messages += self._whole()
            timeout_s = 0.0
        return messages

    def _whole(self) -> Iterator[Any]:
        """Remove and yield the complete messages from the received data."""
        head = _LENGTH.size
        while len(self._came) >= head:
            end = head + _LENGTH.unpack_from(self._came)[0]
            if not head <= end <= head + LIMIT:
                raise PeerGone
            if len(self._came) < end:
                return
            message = bytes(self._came[head:end])
            del self._came[:end]
            yield decode(message)

    def close(self) -> None:
        """Hang up."""
        self.connection.close()


class BufferedChannel(Channel):
    """The coordinator's end, which never blocks to send: data that the peer does not take at once stays in `left`.

    `left` is bounded: a rank that reports nothing gets no more work, and is dropped at its deadline."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        os.set_blocking(connection.fileno(), False)
        self.left = bytearray()

    def send(self, message: Record) -> None:
        """Send one message as soon as possible, also by later calls of `flush`. If the peer is gone, `receive` raises."""
        data = _encoded(message)
        self.left += _LENGTH.pack(len(data)) + data
        self.flush()

    def flush(self) -> None:
        """Send as much as the peer takes now, without blocking."""
        try:
            while self.left:
                del self.left[: os.write(self.connection.fileno(), self.left)]
        except BlockingIOError:
            return
        except OSError:
            self.left.clear()


def _encoded(message: Record) -> bytes:
    data = encode(message)
    assert len(data) <= LIMIT, f"a {type(message).__name__} of {len(data)} bytes"
    return data
