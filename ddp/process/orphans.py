"""Ends processes whose parent has ended in whatever way, such as SIGKILL or out of memory.

Most of them notice by the closed pipe. A stopped process reads nothing, so the kernel must signal it."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
from contextlib import suppress
from multiprocessing import forkserver
from typing import Any

import psutil

from ddp.process import scratch

_PR_SET_PDEATHSIG = 1
GOING_S = 5.0
"""Seconds that killed ranks may take to end."""


def at_parents_end(number: signal.Signals) -> None:
    """Have the kernel send this process the signal `number` when its parent, or the parent's thread that started it, ends.

    SIGKILL and SIGCONT also reach a stopped process. Linux only; elsewhere this does nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def bind_rank() -> None:
    """Have this rank end when the fork server ends.

    The rank closes its end of the pipe by which the server notices its parent's end, so that only the parent holds one."""
    at_parents_end(signal.SIGKILL)
    server: Any = forkserver._forkserver  # it has no public name
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None


def bind_server() -> None:
    """Have this process, the fork server, notice the parent's end even while stopped, and clean up then."""
    at_parents_end(signal.SIGCONT)
    atexit.register(_leave_nothing, os.getpid())


def _leave_nothing(server: int) -> None:
    """Kill the ranks, whatever state they are in, and remove the files that the parent left behind."""
    if os.getpid() != server:
        return
    ranks = psutil.Process().children()
    for rank in ranks:
        with suppress(psutil.NoSuchProcess):
            rank.kill()
    psutil.wait_procs(ranks, GOING_S)
    for place in scratch.places():
        scratch.tidy(place)
    os._exit(0)  # unloading torch would take seconds on a loaded machine
