"""A rank's process as a Ray actor: it starts the command, with Ray's placement in environment variables, and ends it.

A cell on several hosts has one actor for each rank; a cell on one host has a single actor, whose command forks the
ranks. A restarted actor has no command until the next attempt starts one. Imports Ray only in an actor.
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
    """The place of an actor."""

    host: str
    node: str
    """Ray's id of the node; in tests one host may be several nodes."""
    address: str
    port: int
    """A free port on that host."""
    doomed: bool
    """Whether the node's raylet is dead: the actor still answers, but will end soon."""


class RayRank:
    """Runs one command at a time. The actor has two threads, so that methods may overlap."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: subprocess.Popen[bytes] | None = None
        self._over = -1
        self._raylet = os.getppid()

    def place(self) -> ActorPlace:
        """Return the place of this actor."""
        import ray

        address = ray.util.get_node_ip_address()
        with socket.create_server((address, 0)) as free:
            port = int(free.getsockname()[1])
        context = ray.get_runtime_context()
        return ActorPlace(os.uname().nodename, context.get_node_id(), address, port, os.getppid() != self._raylet)

    def train(self, words: list[str], cwd: str, variables: dict[str, str], log: str, attempt: int) -> int:
        """Run the command to its end; return its exit code, or that of an interrupted command if `end` was called
        first."""
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
        """End the command of this attempt, or prevent its start."""
        with self._lock:
            self._over, running = attempt, self._running
        if running is not None and running.poll() is None:
            running.terminate()
            try:
                running.wait(END_S)
            except subprocess.TimeoutExpired:
                running.kill()


def variables(places: list[ActorPlace], job: str, key: str, attempt: int) -> list[dict[str, str]]:
    """Return the environment variables that `ddp.launcher` reads, for each actor. Ranks fill one host after the
    other."""
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
