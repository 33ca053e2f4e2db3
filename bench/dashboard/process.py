"""The dashboard beside a run: a process that the run starts, never waits for, and ends. It cannot fail the run.

The run opens the socket, so that the address is known before the process starts. A pipe tells the process when the
run's process has ended, even by a kill. Imports nothing slow, so that a dashboard does not delay the run's start.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from bench.base.environment import inherited

ENDING_S = 3.0
"""Seconds that the process may take to end before it is killed."""


class DashboardProcess:
    """A dashboard over the runs below a folder. Ends with `close`, or with this process."""

    def __init__(self, output: Path, port: int = 0, private: bool = False) -> None:
        """Start the dashboard. `port` 0: any free port. `private`: the process removes the folder at its end. Raises
        OSError if it cannot start."""
        with listen("127.0.0.1", port) as listening:
            self.address = address(listening, "127.0.0.1")
            words = ["dashboard", str(output), "--socket", str(listening.fileno()), *(["--private"] if private else [])]
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "bench", *words],
                env=inherited(),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(listening.fileno(),),
                start_new_session=True,  # what interrupts the run does not interrupt this: the run ends it
            )

    def close(self) -> None:
        """End the dashboard's process."""
        process = self._process
        assert process.stdin is not None
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket, at which connections queue from now on. Raises OSError, also for an invalid host or
    port."""
    if not 0 <= port < 1 << 16:
        raise OSError("ports are 0 to 65535")
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server((place[0], place[1]), family=family)
    except (OverflowError, UnicodeError) as error:
        raise OSError(str(error)) from None


def address(listening: socket.socket, host: str) -> str:
    """Return the address of the dashboard for a browser on this machine."""
    port = listening.getsockname()[1]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"
