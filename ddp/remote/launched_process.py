"""The place of this process among those of a launcher, and the messages that they exchange at their store.

Owns the names in that store and the key that seals the messages. Knows no configuration and no run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import psutil

from ddp.comm.store_answer import answered
from ddp.core.errors import EngineError, ProtocolError, RankLost
from ddp.launcher.environment import MPI, Placement, read
from ddp.launcher.rank0_address import awaited_address, candidates, reachable
from ddp.remote.handshake import shared_key
from ddp.remote.secret import opened, own_key

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

TORCHRUN = "torchrun"
STORE_S = 60.0
"""Seconds that the store may take to answer, and rank 0's host to become reachable."""
READY_S = 300.0
"""Seconds that node agents wait for rank 0's address: rank 0 announces it after its imports and configuration, before its
data."""
STALE_S = 30.0
"""Seconds that node agents wait for another announcement if torchrun's store has the exit code of an earlier start."""
LOOK_S = 0.05
PROXIES = ("hydra_pmi_proxy", "mpispawn")
"""Names of the processes of MPICH and MVAPICH that start the ranks of a host."""
REMEDY = "put the same secret on every host, and its path in DDP_KEY_FILE: openssl rand -hex 32 > key; chmod 600 key"


@dataclass(frozen=True)
class LaunchedProcess:
    """This process among those of a launcher, and the store at which they meet."""

    rank: int
    world_size: int
    node: int
    """Index of this host; rank 0's host is 0."""
    nodes: int
    host_ranks: int
    """Number of ranks on this host."""
    store: str
    """HOST:PORT of the store of all processes: torchrun's, or rank 0's."""
    attempt: str
    """Name of rank 0's announcement, which distinguishes this start of the processes from others. torchrun's agents have no
    such name, as each counts restarts apart: there it is the same for all starts."""
    restarts: int = 0
    """How often the processes were restarted, as far as this host's launcher knows."""
    launcher: str = TORCHRUN
    job: str = ""
    """The launcher's id of the job."""
    local_rank: int = 0
    """Index of this process on its host."""

    @property
    def host(self) -> str:
        """Return the host of the store."""
        return self.store.rpartition(":")[0].strip("[]")

    def key(self) -> bytes:
        """Return the secret of all processes. If none was given and all processes are on one host, it is their user's own
        key. Raise ValueError, OSError."""
        key = shared_key(os.environ)
        if key is None and self.nodes > 1:
            raise ValueError(f"{self.nodes} hosts need a key, or anybody could take a rank's place: {REMEDY}")
        return key or own_key()


def launched_process(environ: Mapping[str, str]) -> LaunchedProcess | None:
    """Read the place of this process from a launcher's variables. None if no launcher started it, or it is the only
    process.

    Searches for rank 0's host if the launcher does not name it. Raise ValueError for variables that contradict each other,
    and for a host that is not found within `STORE_S`."""
    placement = read(environ)
    return None if placement is None or placement.world_size == 1 else process_of(placement, environ)


def process_of(placement: Placement, environ: Mapping[str, str]) -> LaunchedProcess:
    """Return the process with this placement. Raise ValueError."""
    own = placement if placement.launcher != MPI or placement.nodes > 1 else _of_this_start(placement)
    host, port = own.address, own.port or own.own_port
    attempt = "machines"
    if own.launcher != TORCHRUN:
        look = partial(candidates, own, environ)
        host = awaited_address(look, STORE_S) if own.rank == 0 else reachable(look, port, STORE_S)
        attempt = f"machines/{own.job}/{own.step}"
    store = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return LaunchedProcess(
        own.rank,
        own.world_size,
        own.node,
        own.nodes,
        own.host_ranks,
        store,
        attempt,
        own.restarts,
        own.launcher,
        own.job,
        own.local_rank,
    )


def _of_this_start(placement: Placement) -> Placement:
    """Add to `step` the id of mpirun's proxy process on this host, because MPICH's variables do not distinguish one start
    from another."""
    for process in psutil.Process().parents():
        with suppress(psutil.Error):
            if process.name() in PROXIES:
                return replace(placement, step=f"{placement.step}/{process.pid}")
    return placement


def open_store(place: LaunchedProcess) -> Store:
    """Connect to the store; rank 0 opens it if the launcher has none. All starts see the same store of torchrun's. Raise
    RankLost."""
    from ddp.comm.store_exchange import open_store

    port = int(place.store.rpartition(":")[2])
    at = None if place.launcher == TORCHRUN else (place.host, port)
    store = open_store(place.rank, place.world_size, STORE_S, at)
    whole: Store = getattr(store, "underlying_store", store)  # below a prefix with this host's count of restarts
    return whole


def heard(attempt: str, rank: int) -> str:
    """Return the name of the note that this rank has read rank 0's exit code."""
    return f"{attempt}/heard/{rank}"


def announced(place: LaunchedProcess, key: bytes, store: Store) -> dict[str, Any]:
    """Wait for rank 0's announcement at the store: where it listens, or its exit code. Raise RankLost; ProtocolError if
    someone else wrote it.

    At torchrun's store, an exit code may be that of an earlier start. Rank 0 and this process count their starts: the code
    of one with a smaller number counts only if no other announcement comes within `STALE_S`, as a process may be killed
    before it counts."""
    came, start = time.monotonic(), _starts(place, store)
    message = latest(place, key, store)
    while message is None or ("code" in message and message["start"] < start and time.monotonic() < came + STALE_S):
        if time.monotonic() > came + READY_S:
            late = f"rank 0 did not say within {READY_S:g} s where it listens"
            raise RankLost(f"{late}: was it killed? See what it printed")
        time.sleep(LOOK_S)
        message = latest(place, key, store)
    return message


def _starts(place: LaunchedProcess, store: Store) -> int:
    """Count this start of the process at torchrun's store; return how many there were. Raise RankLost."""
    if place.launcher != TORCHRUN:
        return 1
    try:
        return answered(lambda: store.add(f"{place.attempt}/starts/{place.rank}", 1), STORE_S)
    except RuntimeError as error:
        raise _gone(error) from error


def _gone(error: RuntimeError) -> RankLost:
    return RankLost(f"rank 0 is gone before the run began ({str(error).splitlines()[0]})")


def latest(place: LaunchedProcess, key: bytes, store: Store) -> dict[str, Any] | None:
    """Return what rank 0 has announced last; None if nothing yet. Raise RankLost, ProtocolError."""

    def read() -> dict[str, Any] | None:
        if not store.check([place.attempt]):
            return None
        message = opened(store.get(place.attempt), key, place.attempt)
        if "code" in message:
            store.set(heard(place.attempt, place.rank), "")
        return message

    try:
        return answered(read, STORE_S)
    except RuntimeError as error:  # the store is gone
        raise _gone(error) from error
    except ProtocolError as error:
        where = "where rank 0 listens, as the store has it"
        raise ProtocolError(f"{where}, is not to be believed: {error}") from error


def exit_code(place: LaunchedProcess, key: bytes, store: Store, run: str) -> int | None:
    """Return the exit code that rank 0 has announced for this run; None if its command has not ended."""
    with suppress(EngineError):
        message = latest(place, key, store)
        if message is not None and "code" in message and message["run"] == run:
            return int(message["code"])
    return None
