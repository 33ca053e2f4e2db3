"""A process of torchrun's that is not rank 0: it serves ranks on its host until rank 0's command is over.

Knows no words of the command: what to train comes from rank 0 (`ddp.remote`).
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psutil

from bench.base.exitcodes import Exit
from bench.base.hosts import address_towards, interface_of
from bench.base.usage import reason, usage
from bench.models import MODELS
from bench.runner.torchrun import CATALOGUE, STORE_S, Seat, announced, exit_code, open_store
from ddp.core.errors import EngineError, RankLost
from ddp.process.orphans import at_parents_end

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

AGENT_S = 15.0
"""What torchrun gets to end, where the link to its store is cut."""


def serve(place: Seat) -> int:
    """Serve rank 0 until it says that all is over; return its exit code."""
    at_parents_end(signal.SIGCONT)  # stopped, it would not notice that rank 0 is gone with torchrun
    try:
        with usage():
            key = place.key()
        store = open_store(place)
        message = announced(place, key, store)
        return int(message["code"]) if "code" in message else _attend(place, message, key, store)
    except (EngineError, OSError) as error:
        why = reason(error) if isinstance(error, OSError) else error
        print(f"bench: rank {place.rank} ends: {why}", file=sys.stderr)
        return Exit.FAILED


def _attend(place: Seat, message: dict[str, Any], key: bytes, store: Store) -> int:
    from ddp.process import forkserver
    from ddp.remote.agent import NodeAgent, Post, arrive
    from ddp.remote.wire import Silent

    address = (str(message["host"]), int(message["port"]))
    if place.nodes > 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface_of(address_towards(address))[1])
    forkserver.warm(tuple(MODELS.values()))
    launcher = os.getppid()
    post = Post(address, key, bytes.fromhex(message["run"]), place.rank, place.node, CATALOGUE)
    try:
        wire, clock = arrive(post, STORE_S, lambda: exit_code(place, key, store) is not None)
        with NodeAgent(post, wire, clock) as agent:
            return agent.serve()
    except EngineError as error:
        silent = isinstance(error, Silent)
        if not silent and (code := exit_code(place, key, store)) is not None:
            return code
        if place.node and silent:
            _end_launcher(launcher)
        raise RankLost("the coordinator at {}:{} is lost: {}".format(*address, error)) from error


def _end_launcher(pid: int) -> None:
    """End torchrun here as Ctrl-C would: behind a link that is cut it would wait for its store until the kernel gives up, a
    quarter of an hour."""
    with suppress(psutil.Error, OSError):
        words = psutil.Process(pid).cmdline()
        if os.getppid() == pid and any("torchrun" in word or word == "torch.distributed.run" for word in words):
            _end(pid, AGENT_S)


def _end(pid: int, patience_s: float) -> None:
    """Send SIGTERM, and SIGKILL to who still lives after `patience_s`: torchrun takes leave of a store that does not answer,
    a minute for each word. That second signal is of a process that outlives this one."""
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
