"""Rank 0's side of a run whose ranks a launcher has started: it listens, announces its address at the store, and announces
the end.

Knows neither configuration nor run. A command or a script uses one instance for all of its runs.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from typing import TYPE_CHECKING, Any

from ddp.core.errors import RankLost
from ddp.launcher.interfaces import interface_of, is_loopback, on_loopback
from ddp.remote.first_start import first_start
from ddp.remote.job_message import Catalogue
from ddp.remote.launched_process import LOOK_S, TORCHRUN, LaunchedProcess, open_store
from ddp.remote.rendezvous import Company, RendezvousServer
from ddp.remote.secret import seal

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

LINGER_S = 10.0
"""Seconds that rank 0's process waits for processes that have not heard of the end."""


class HeadNode:
    """Rank 0 among the processes of a launcher."""

    def __init__(self, place: LaunchedProcess, catalogue: Catalogue, program: str) -> None:
        """`program`: prefix of its lines on stderr."""
        self.process, self._catalogue, self._program = place, catalogue, program
        self._rendezvous: RendezvousServer | None = None
        self._store: Store | None = None
        self.began: float | None = None
        """When torchrun first started the processes (`first_start`); None if unknown."""

    @property
    def rendezvous(self) -> RendezvousServer:
        """Return the server to which node agents connect. `listen` must have been called."""
        assert self._rendezvous is not None
        return self._rendezvous

    def settle_address(self, bind: str) -> str:
        """Return the address to listen on, and have gloo use its interface between hosts: call this before ranks inherit
        the environment. If `bind` is loopback but hosts were found by an address, it is that address. Raise ValueError."""
        place, (address, interface) = self.process, interface_of(bind)
        if place.nodes > 1 and place.launcher != TORCHRUN and is_loopback(address):
            address, interface = interface_of(place.host)
        if place.nodes > 1 and is_loopback(address) and not on_loopback(place.store):
            raise ValueError(
                f"{place.nodes} hosts, but cluster.bind={bind} is loopback: give the network between them, such as "
                "cluster.bind=10.0.0.0/24, or the name of an interface"
            )
        if place.nodes > 1:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        return address

    def listen(self, bind: str) -> None:
        """Listen, and announce the address at the store. Raise ValueError, OSError, RankLost."""
        if self._rendezvous is not None:
            return
        place, address = self.process, self.settle_address(bind)
        key, run = place.key(), secrets.token_bytes(16)
        company = Company(run, key, place.world_size, place.nodes, place.host_ranks, place.store, self._catalogue)
        self._rendezvous = RendezvousServer(company, address)
        host, port = self._rendezvous.address
        self._announce({"host": host, "port": port, "run": run.hex()})

    def _announce(self, message: dict[str, Any]) -> None:
        """Write the sealed `message` to the store; under torchrun, note the first start. Raise RankLost."""
        place, key = self.process, self.process.key()
        try:
            if self._store is None:
                self._store = open_store(place)
                if place.launcher == TORCHRUN:
                    self.began = first_start(self._store, key)
            self._store.set(place.attempt, seal(message, key, place.attempt))
        except RuntimeError as error:
            raise RankLost(f"the store at {self.process.store} is gone ({str(error).splitlines()[0]})") from error

    def dismiss(self, code: int) -> None:
        """Announce the end with this exit code: node agents exit when this process has ended."""
        if self._rendezvous is not None:
            if cut_off := self._rendezvous.cut_off:
                silent = f"rank {', '.join(map(str, cut_off))} went silent"
                wait = ": torchrun here may wait 5 minutes for its host" if self.process.launcher == TORCHRUN else ""
                print(f"{self._program}: {silent}{wait}", file=sys.stderr)
            self._rendezvous.dismiss(code)
            if self._rendezvous.complete:
                return
        try:
            self._announce({"code": code})
            self._linger()
        except (ValueError, OSError):  # without a key, the other processes have failed by themselves
            return
        except RankLost as error:
            if self._rendezvous is None:
                print(f"{self._program}: the other ranks could not be told: {error}", file=sys.stderr)

    def _linger(self) -> None:
        """Keep this process's store open until all others have read the announcement, at most `LINGER_S` seconds."""
        until = time.monotonic() + LINGER_S
        if self.process.launcher != TORCHRUN and self._store is not None:
            while self._store.add(f"{self.process.attempt}/heard", 0) < self.process.world_size - 1:
                if time.monotonic() > until:
                    return
                time.sleep(LOOK_S)
