"""Ends processes whose parent is gone, however it ended: SIGKILL, out of memory.

Their end of a pipe tells most of them. A stopped process reads nothing: the kernel must tell that one."""

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
"""How long killed ranks may take to go."""


def at_parents_end(number: signal.Signals) -> None:
    """Have the kernel send this process `number` when its parent ends, or the parent's thread that started it.

    SIGKILL and SIGCONT reach a stopped process too. Linux alone; elsewhere this does nothing.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def bind_rank() -> None:
    """Have this rank, forked from the fork server, end with it.

    The rank gives up its share in the pipe by which the server learns that nobody needs it: the parent alone has one then.
    """
    at_parents_end(signal.SIGKILL)
    server: Any = forkserver._forkserver  # which has no public name
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None


def bind_server() -> None:
    """Have this process, the fork server, notice the parent's end even while it is stopped, and leave nothing then."""
    at_parents_end(signal.SIGCONT)
    atexit.register(_leave_nothing, os.getpid())


def _leave_nothing(server: int) -> None:
    """End the ranks, whatever state they are in, and remove the files of a parent that could not do so."""
    if os.getpid() != server:
        return
    ranks = psutil.Process().children()
    for rank in ranks:
        with suppress(psutil.NoSuchProcess):
            rank.kill()
    psutil.wait_procs(ranks, GOING_S)
    for place in scratch.places():
        scratch.tidy(place)
    os._exit(0)  # to take torch apart would take seconds on a loaded machine
