"""The control channel: typed messages over a connection. Framing is the standard library's, the text form the codec's.

Nothing is ever unpickled. A peer that goes away is `PeerGone`.
"""

from __future__ import annotations

import select
import threading
from multiprocessing.connection import Connection
from typing import Any

from ddp.core.errors import EngineError
from ddp.process.codec import Record, decode, encode

LIMIT = 1 << 20
"""Largest message, bytes: a traceback is the largest there is."""


class PeerGone(EngineError):
    """The other end of a channel has hung up."""


class Channel:
    """One end of a duplex connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._sending = threading.Lock()
        self._poll = select.poll()
        self._poll.register(connection.fileno(), select.POLLIN)

    def send(self, message: Record) -> None:
        """Send one message. Raises PeerGone."""
        data = encode(message)
        assert len(data) <= LIMIT, f"a {type(message).__name__} of {len(data)} bytes"
        try:
            with self._sending:
                self.connection.send_bytes(data)
        except OSError as error:
            raise PeerGone from error

    def receive(self, timeout_s: float) -> list[Any]:
        """Return all messages that are there; wait up to `timeout_s` for the first. Raises PeerGone once nothing more
        will come."""
        messages = []
        while self._poll.poll(timeout_s * 1000):
            try:
                messages.append(decode(self.connection.recv_bytes(LIMIT)))
            except (EOFError, OSError) as error:
                if messages:
                    break  # what came before the end is to be heard first
                raise PeerGone from error
            timeout_s = 0.0
        return messages

    def close(self) -> None:
        """Hang up."""
        self.connection.close()
