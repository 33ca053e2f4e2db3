"""torchft's lighthouse, the server that decides which ranks form a group: one for each run, in the coordinator's process.

Owns where ranks find it, a file in the run's scratch folder. Imports torchft when it serves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlparse

from ddp.comm.transports.base import ExchangeBroken
from ddp.process.scratch import write_whole
from ddp.replica.task import Job

HEARTBEAT_MS = 1000
"""Milliseconds without a heartbeat after which a group may form without the rank. torchft's default is 5 s."""
TICK_MS, LOOK_S = 50, 0.01
HOST = "127.0.0.1"


def _file(scratch: Path) -> Path:
    return scratch / "lighthouse"


@contextmanager
def serving(job: Job) -> Iterator[None]:
    """Serve for a `with` block."""
    from torchft.coordination import LighthouseServer

    waits = {"join_timeout_ms": int(1000 * job.deadline_s), "heartbeat_timeout_ms": HEARTBEAT_MS}
    server = LighthouseServer(bind=f"{HOST}:0", min_replicas=1, quorum_tick_ms=TICK_MS, **waits)
    try:
        write_whole(_file(job.scratch), f"http://{HOST}:{urlparse(server.address()).port}")
        yield
    finally:
        server.shutdown()


def address(scratch: Path, limit_s: float) -> str:
    """Return the lighthouse's address; wait until it serves. Raises ExchangeBroken after `limit_s`."""
    until = time.monotonic() + limit_s
    while not _file(scratch).exists():
        if time.monotonic() > until:
            raise ExchangeBroken(f"torchft's lighthouse did not come within {limit_s:g} s")
        time.sleep(LOOK_S)
    return _file(scratch).read_text(encoding="utf-8")
