"""Where a dashboard listens. Imports nothing that takes time: a run that has one starts no later."""

from __future__ import annotations

import socket


def listen(host: str, port: int) -> socket.socket:
    """Open a socket that connections queue at from now on. Raises OSError, also for a host or port that cannot be."""
    if not 0 <= port < 1 << 16:
        raise OSError("ports are 0 to 65535")
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server((place[0], place[1]), family=family)
    except (OverflowError, UnicodeError) as error:
        raise OSError(str(error)) from None


def address(listening: socket.socket, host: str) -> str:
    """Return where a browser on this machine finds it."""
    port = listening.getsockname()[1]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"
