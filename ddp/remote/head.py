"""Rank 0's side of a run whose ranks a launcher has started: it listens, announces its address at the store, and announces
the end.

Knows neither configuration nor run. A command or a script uses one instance for all of its runs.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ddp.core.errors import RankLost
from ddp.launcher.interfaces import interface_of, is_loopback, on_loopback
from ddp.remote.first_start import STARTS, first_start
from ddp.remote.job_message import Catalogue
from ddp.remote.launched_process import LOOK_S, TORCHRUN, LaunchedProcess, heard, open_store
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
        """When torchrun first started the processes (`first_start`); None if this is the first start, or it is unknown."""
        self.restarts, self._start = place.restarts, 1
        """How often rank 0's process was started before; of torchrun's starts, those that came to the store."""
        self._run = secrets.token_bytes(16)

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
        key = place.key()
        company = Company(self._run, key, place.world_size, place.nodes, place.host_ranks, place.store, self._catalogue)
        rendezvous = RendezvousServer(company, address)
        host, port = rendezvous.address
        try:
            self._announce({"host": host, "port": port})
        except BaseException:
            rendezvous.close()
            raise
        self._rendezvous = rendezvous

    def _announce(self, message: dict[str, Any]) -> None:
        """Write the sealed `message` of this run to the store; under torchrun, note the first start. Raise RankLost."""
        place, key = self.process, self.process.key()
        try:
            if self._store is None:
                self._store = open_store(place)
                if place.launcher == TORCHRUN:
                    self._start = self._store.add(STARTS, 1)
                    self.restarts = max(place.restarts, self._start - 1)
                    self.began = first_start(self._store, key)
            announcement = message | {"run": self._run.hex(), "start": self._start}
            self._store.set(place.attempt, seal(announcement, key, place.attempt))
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
            if not self._rendezvous.absent:
                return
        try:
            self._announce({"code": code})
            self._linger(code)
        except (ValueError, OSError):  # without a key, the other processes have failed by themselves
            return
        except RankLost as error:
            if self._rendezvous is None:
                print(f"{self._program}: the other ranks could not be told: {error}", file=sys.stderr)

    def _linger(self, code: int) -> None:
        """Keep this process's store open until all others have read the exit code there or have connected, at most
        `LINGER_S` seconds."""
        store, until = self._store, time.monotonic() + LINGER_S
        if self.process.launcher == TORCHRUN or store is None:
            return
        while any(not store.check([heard(self.process.attempt, rank)]) for rank in self._absent()):
            if time.monotonic() > until:
                break
            time.sleep(LOOK_S)
        if self._rendezvous is not None:  # some may have connected meanwhile
            self._rendezvous.dismiss(code)

    def _absent(self) -> Sequence[int]:
        """Return the ranks whose processes have not connected."""
        return range(1, self.process.world_size) if self._rendezvous is None else self._rendezvous.absent
