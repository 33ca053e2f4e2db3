"""The control channel: typed messages over a connection. Framing is the standard library's, the text form the codec's.

Nothing is ever unpickled. A peer that goes away is `PeerGone`; one that stops within a message holds nobody up.
"""

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
"""Largest message, bytes: a traceback is the largest there is."""
_LENGTH, _READ = struct.Struct("!i"), 1 << 18


class PeerGone(EngineError):
    """The other end of a channel has hung up."""


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
        """Return all messages that are whole; wait up to `timeout_s` for something to come. Raises PeerGone once nothing
        more will."""
        messages: list[Any] = []
        while self._poll.poll(timeout_s * 1000):
            try:
                came = os.read(self.connection.fileno(), _READ)
            except OSError:
                came = b""
            if not came:
                if messages:
                    break  # what came before the end is to be heard first
                raise PeerGone
            self._came += came
            messages += self._whole()
            timeout_s = 0.0
        return messages

    def _whole(self) -> Iterator[Any]:
        """Take out what is whole of what has come."""
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
    """The coordinator's end, which never waits to send: what the peer does not take at once stays in `left`.

    That is bounded: a rank that reports nothing is given nothing more to do, and is dropped at its deadline."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        os.set_blocking(connection.fileno(), False)
        self.left = bytearray()

    def send(self, message: Record) -> None:
        """Send one message as soon as `flush` can. That the peer has gone away is for `receive` to find."""
        data = _encoded(message)
        self.left += _LENGTH.pack(len(data)) + data
        self.flush()

    def flush(self) -> None:
        """Send as much as the peer takes now."""
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
