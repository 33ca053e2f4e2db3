"""The control channel: typed messages over a connection. Framing is the standard library's, the text form the codec's.

Nothing is ever unpickled. A peer that goes away is an `EOFError`.
"""

from __future__ import annotations

import select
from multiprocessing.connection import Connection
from typing import Any

from ddp.runtime.codec import Record, decode, encode

LIMIT = 1 << 20
"""Largest message, bytes: a traceback is the largest there is."""


class Channel:
    """One end of a duplex connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._poll = select.poll()
        self._poll.register(connection.fileno(), select.POLLIN)

    def send(self, message: Record) -> None:
        """Send one message. Raises OSError if the peer is gone."""
        self.connection.send_bytes(encode(message)[:LIMIT])

    def receive(self, timeout_s: float) -> list[Any]:
        """All messages that are there; waits up to `timeout_s` for the first. Raises EOFError once the peer is gone."""
        messages = []
        while self._poll.poll(timeout_s * 1000):
            try:
                messages.append(decode(self.connection.recv_bytes(LIMIT)))
            except (EOFError, ConnectionResetError):
                if messages:
                    break  # what came before the end is to be heard first
                raise EOFError from None
            timeout_s = 0.0
        return messages

    def close(self) -> None:
        """Hang up."""
        self.connection.close()
