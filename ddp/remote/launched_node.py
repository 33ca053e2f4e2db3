"""A launcher's process that is not rank 0: it serves ranks on its host until rank 0 ends the run.

Rank 0 sends the task by its name in the catalogue that both have. Knows no command line.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import psutil

from ddp.core.errors import EngineError, OutOfResources, ProtocolError, RankLost
from ddp.launcher.environment import RAY
from ddp.launcher.interfaces import address_towards, interface_of
from ddp.process import forkserver
from ddp.process.orphans import at_parents_end
from ddp.remote.agent import JobSetup, NodeAgent, RankAssignment, connect, unchanged
from ddp.remote.job_message import Catalogue
from ddp.remote.launched_process import (
    READY_S,
    STORE_S,
    TORCHRUN,
    LaunchedProcess,
    announced,
    exit_code,
    latest,
    open_store,
)
from ddp.remote.wire import LinkLost, Silent

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

AGENT_S = 15.0
"""Seconds that torchrun gets to end, if the connection to its store is broken."""


def serve_rank0(
    place: LaunchedProcess,
    key: bytes,
    catalogue: Catalogue,
    preload: tuple[str, ...],
    prepare_job: JobSetup = unchanged,
) -> int:
    """Serve rank 0 until it announces the end; return the exit code that it announces.

    `preload`: modules that the fork server imports; `prepare_job`: prepares a received job. Raise RankLost,
    other EngineErrors, OSError."""
    # A stopped process would not notice the end of its launcher and rank 0: continue it. A Ray actor may end alone.
    at_parents_end(signal.SIGKILL if place.launcher == RAY else signal.SIGCONT)
    store = open_store(place)
    message = announced(place, key, store)
    while "code" not in message:
        address, run = (str(message["host"]), int(message["port"])), bytes.fromhex(message["run"])
        beside = place.local_rank, place.host_ranks
        assignment = RankAssignment(address, key, run, place.rank, place.node, catalogue, *beside)
        if place.nodes > 1:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface_of(address_towards(address))[1])
        forkserver.warm(preload)
        patience_s = READY_S if place.launcher == TORCHRUN else STORE_S  # torchrun's may be an earlier start's address
        try:
            wire, clock = connect(assignment, patience_s, partial(_later, place, key, store, message))
        except LinkLost as error:
            if (later := _later(place, key, store, message)) is None:
                raise RankLost("the coordinator at {}:{} is lost: {}".format(*address, error)) from error
            message = later
            continue
        return _serve(place, assignment, NodeAgent(assignment, wire, clock, prepare_job), key, store)
    return int(message["code"])


def _later(place: LaunchedProcess, key: bytes, store: Store, message: dict[str, Any]) -> dict[str, Any] | None:
    """Return what rank 0 has announced since `message`; None if nothing. Raise RankLost."""
    with suppress(ProtocolError):
        current = latest(place, key, store)
        return None if current == message else current
    return None


def _serve(place: LaunchedProcess, assignment: RankAssignment, agent: NodeAgent, key: bytes, store: Store) -> int:
    launcher = os.getppid()
    try:
        with agent:
            return agent.serve()
    except OutOfResources:  # a problem of this host
        raise
    except EngineError as error:
        silent = isinstance(error, Silent)
        if not silent and (code := exit_code(place, key, store, assignment.run.hex())) is not None:
            return code
        if place.node and silent and place.launcher == TORCHRUN:
            _end_launcher(launcher)
        raise RankLost("the coordinator at {}:{} is lost: {}".format(*assignment.address, error)) from error


def _end_launcher(pid: int) -> None:
    """End torchrun on this host as Ctrl-C would. If the connection to its store is broken, it would wait a quarter of an
    hour, until the kernel gives up."""
    with suppress(psutil.Error, OSError):
        words = psutil.Process(pid).cmdline()
        if os.getppid() == pid and any("torchrun" in word or word == "torch.distributed.run" for word in words):
            _end(pid, AGENT_S)


def _end(pid: int, patience_s: float) -> None:
    """Send SIGTERM, and SIGKILL after `patience_s` if the process still lives: torchrun waits a minute for each message to
    a store that does not answer. A helper process sends the second signal, because it must outlive this one."""
    command = [sys.executable, "-c", _LAST_WORD, str(pid), str(patience_s)]
    nowhere = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
    os.posix_spawn(sys.executable, command, os.environ, file_actions=nowhere, setpgroup=0)
    os.kill(pid, signal.SIGTERM)


_LAST_WORD = """
import sys, psutil
process = psutil.Process(int(sys.argv[1]))
if psutil.wait_procs([process], float(sys.argv[2]))[1]:
    process.kill()
"""
