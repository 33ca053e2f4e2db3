"""When torchrun first started the processes: a note at its agent's store, which lasts when the processes are restarted."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from ddp.comm.store_answer import answered
from ddp.core.errors import ProtocolError
from ddp.remote.handshake import shared_key
from ddp.remote.secret import opened, own_key, seal

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

BEGAN = "machines/began"
"""Name of the note at the store."""
STARTS = "machines/starts"
"""Name of the counter of rank 0's starts."""
VISIT_S = 5.0
"""Seconds that the store may take to answer."""


def first_start(store: Store, key: bytes) -> float | None:
    """Return the time of the first start that came here, in seconds since the epoch: an earlier one began no run. None if
    this call is the first, or somebody else wrote the note. Raise RuntimeError if the store is gone."""
    own = seal({"at": time.time()}, key, BEGAN)
    note = store.compare_set(BEGAN, "", own)
    with suppress(ProtocolError, KeyError, TypeError, ValueError):
        return float(opened(note, key, BEGAN)["at"]) if note != own.encode() else None
    return None


def first_start_alone(environ: Mapping[str, str]) -> float | None:
    """Return the same for torchrun's only process, from its variables; None if it is unknown."""
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or environ.get("TORCHELASTIC_MAX_RESTARTS") == "0":
        return None
    from torch._C._distributed_c10d import TCPStore

    def visit() -> float | None:
        address, limit = (environ["MASTER_ADDR"], int(environ["MASTER_PORT"])), timedelta(seconds=VISIT_S)
        store = TCPStore(*address, is_master=False, timeout=limit, wait_for_workers=False)
        return first_start(store, shared_key(environ) or own_key())

    with suppress(KeyError, ValueError, OSError, RuntimeError):
        return answered(visit, 2 * VISIT_S)
    return None
