"""A rank's process as an actor of Ray's: it starts the command, with Ray's placement in the variables, and ends it.

One actor a host's rank; where a cell is on one host, one actor whose command forks the ranks. An actor that Ray restarts
has no command: it is started again with the next attempt. Imports nothing of Ray's where it is not an actor.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from bench.base.environment import inherited
from bench.base.exitcodes import Exit
from bench.runner.submitted_cell import END_S
from ddp.launcher.environment import RAY


@dataclass(frozen=True)
class ActorPlace:
    """Where an actor is."""

    host: str
    node: str
    """Ray's name of the host: one host of a test may be several."""
    address: str
    port: int
    """One that is free there."""
    doomed: bool
    """Its raylet is dead: the actor still answers, and ends soon."""


class RayRank:
    """Runs one command at a time. Methods may overlap: an actor of two threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: subprocess.Popen[bytes] | None = None
        self._over = -1
        self._raylet = os.getppid()

    def place(self) -> ActorPlace:
        """Return where this is."""
        import ray

        address = ray.util.get_node_ip_address()
        with socket.create_server((address, 0)) as free:
            port = int(free.getsockname()[1])
        context = ray.get_runtime_context()
        return ActorPlace(os.uname().nodename, context.get_node_id(), address, port, os.getppid() != self._raylet)

    def train(self, words: list[str], cwd: str, variables: dict[str, str], log: str, attempt: int) -> int:
        """Run the command to its end; return its exit code, that of an interrupted one if `end` came first."""
        with self._lock, Path(log).open("ab") as file:
            if attempt <= self._over:
                return Exit.KILLED
            self._running = running = subprocess.Popen(
                [sys.executable, "-P", "-m", "bench", *words],
                cwd=cwd,
                env=inherited() | variables,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        return running.wait()

    def end(self, attempt: int) -> None:
        """End the command of this attempt, or keep it from beginning."""
        with self._lock:
            self._over, running = attempt, self._running
        if running is not None and running.poll() is None:
            running.terminate()
            try:
                running.wait(END_S)
            except subprocess.TimeoutExpired:
                running.kill()


def variables(places: list[ActorPlace], job: str, key: str, attempt: int) -> list[dict[str, str]]:
    """Return what `ddp.launcher` reads, for each actor: they fill one host after the other."""
    nodes = list(dict.fromkeys(place.node for place in places))
    beside = len(places) // len(nodes)
    hosts = ",".join(place.host for place in places[::beside])
    return [
        {
            "DDP_LAUNCHER": RAY,
            "DDP_JOB": job,
            "DDP_RESTARTS": str(attempt),
            "DDP_HOSTS": hosts,
            "DDP_KEY": key,
            "RANK": str(rank),
            "WORLD_SIZE": str(len(places)),
            "LOCAL_RANK": str(rank % beside),
            "LOCAL_WORLD_SIZE": str(beside),
            "NODE_RANK": str(nodes.index(place.node)),
            "MASTER_ADDR": places[0].address,
            "MASTER_PORT": str(places[0].port),
        }
        for rank, place in enumerate(places)
    ]


def new_key() -> str:
    """Return a key for the ranks of a sweep."""
    return secrets.token_hex(32)
