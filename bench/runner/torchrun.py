"""Which of torchrun's processes this one is, and what the processes tell each other at torchrun's store.

Owns the names in that store and the key that seals what lies there. Knows no configuration and no run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench import models
from bench.models.setup import Recipe
from ddp.core.errors import EngineError, ProtocolError, RankLost
from ddp.remote.handshake import shared_key
from ddp.remote.job_message import Catalogue
from ddp.remote.secret import opened, own_key
from ddp.user_code import CodeDigest

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

OWN = (str, Recipe, str, tuple[CodeDigest, ...])
CATALOGUE: Catalogue = {
    "models.make_task": (models.make_task, (str, Recipe, str)),
    "models.make_own_task": (models.make_own_task, OWN),
}
"""Tasks that may be ordered from another host."""
STORE_S = 60.0
"""How long torchrun's store may take to answer."""
READY_S = 300.0
"""How long node agents wait for rank 0 to say where it listens: behind its imports and configuration, before its data."""
LOOK_S = 0.05
REMEDY = "put the same secret on every host, and its path in DDP_KEY_FILE: openssl rand -hex 32 > key; chmod 600 key"


@dataclass(frozen=True)
class Seat:
    """This process among those that torchrun has started."""

    rank: int
    world_size: int
    node: int
    """Place of this host; that of rank 0 is 0."""
    nodes: int
    host_ranks: int
    """Ranks on this host."""
    store: str
    """HOST:PORT of torchrun's store."""
    attempt: str
    """What tells this start of the processes from others."""
    restarts: int = 0
    """How often torchrun has started them anew."""

    def key(self) -> bytes:
        """Return the secret of all processes; where nobody gave them one and they are on one host, their user's own.

        Raise ValueError, OSError."""
        key = shared_key(os.environ)
        if key is None and self.nodes > 1:
            raise ValueError(f"{self.nodes} hosts need a key, or anybody could take a rank's place: {REMEDY}")
        return key or own_key()


def seat(environ: Mapping[str, str]) -> Seat | None:
    """Read the seat from torchrun's variables; None where this is no process of torchrun's, or its only one."""
    if "TORCHELASTIC_RUN_ID" not in environ or environ.get("WORLD_SIZE", "1") == "1":
        return None
    names = ("RANK", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_WORLD_SIZE")
    rank, world_size, node, nodes, host_ranks = (int(environ[name]) for name in names)
    host, restarts = environ["MASTER_ADDR"], int(environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    store = f"[{host}]:{environ['MASTER_PORT']}" if ":" in host else f"{host}:{environ['MASTER_PORT']}"
    return Seat(rank, world_size, node, nodes, host_ranks, store, f"machines/{restarts}", restarts)


def open_store(place: Seat) -> Store:
    """Connect to torchrun's store. Raise RankLost."""
    from ddp.comm.store_exchange import open_store

    return open_store(place.rank, place.world_size, STORE_S)


def announced(place: Seat, key: bytes, store: Store) -> dict[str, Any]:
    """Wait for what rank 0 announces at the store. Raise RankLost, or ProtocolError if somebody else announced it."""
    until = time.monotonic() + READY_S
    try:
        while not store.check([place.attempt]):
            if time.monotonic() > until:
                late = f"rank 0 did not say within {READY_S:g} s where it listens"
                raise RankLost(f"{late}: was it killed? See what it printed")
            time.sleep(LOOK_S)
        text = store.get(place.attempt)
    except RuntimeError as error:  # the store is gone
        raise RankLost(f"rank 0 is gone before the run began ({str(error).splitlines()[0]})") from error
    try:
        return opened(text, key, place.attempt)
    except ProtocolError as error:
        where = "where rank 0 listens, as torchrun's store has it"
        raise ProtocolError(f"{where}, is not to be believed: {error}") from error


def exit_code(place: Seat, key: bytes, store: Store) -> int | None:
    """Return the exit code of rank 0's command, if that has ended before this process came: it announces that then."""
    with suppress(EngineError):
        message = announced(place, key, store)
        return int(message["code"]) if "code" in message else None
    return None
