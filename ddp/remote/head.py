"""Rank 0's side of a run whose ranks a launcher has started: it listens, says where at the store, and says the end.

Knows neither configuration nor run: a command or a script has it from the first run to its end.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ddp.core.errors import ProtocolError, RankLost
from ddp.launcher.interfaces import interface_of, is_loopback, on_loopback
from ddp.remote.job_message import Catalogue
from ddp.remote.launched_process import LOOK_S, TORCHRUN, LaunchedProcess, open_store
from ddp.remote.rendezvous import Company, RendezvousServer
from ddp.remote.secret import opened, seal

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

LINGER_S = 10.0
"""How long rank 0's process stays for others that have not heard yet that all is over."""
BEGAN = "machines/began"
"""Name, at torchrun's store, of the time at which it had started the processes first."""


class HeadNode:
    """Rank 0 among the processes of a launcher."""

    def __init__(self, place: LaunchedProcess, catalogue: Catalogue, program: str) -> None:
        """`program`: what its lines on stderr begin with."""
        self.process, self._catalogue, self._program = place, catalogue, program
        self._rendezvous: RendezvousServer | None = None
        self._store: Store | None = None

    @property
    def rendezvous(self) -> RendezvousServer:
        """Return where the node agents come; `open` has opened it."""
        assert self._rendezvous is not None
        return self._rendezvous

    def listen(self, bind: str) -> None:
        """Listen, and announce it at the store; where `bind` is loopback and hosts were found by an address, on that one.
        Raise ValueError, OSError, RankLost."""
        if self._rendezvous is not None:
            return
        place, (address, interface) = self.process, interface_of(bind)
        if place.nodes > 1 and place.launcher != TORCHRUN and is_loopback(address):
            address, interface = interface_of(place.host)
        if place.nodes > 1 and is_loopback(address) and not on_loopback(place.store):
            raise ValueError(
                f"{place.nodes} hosts, but cluster.bind={bind} is loopback: give the network between them, such as "
                "cluster.bind=10.0.0.0/24, or the name of an interface"
            )
        key, run = place.key(), secrets.token_bytes(16)
        if place.nodes > 1:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        company = Company(run, key, place.world_size, place.nodes, place.host_ranks, place.store, self._catalogue)
        self._rendezvous = RendezvousServer(company, address)
        host, port = self._rendezvous.address
        self._announce({"host": host, "port": port, "run": run.hex()})

    def _announce(self, message: dict[str, Any]) -> None:
        """Seal `message` into the store; the first start notes its time there, too. Raise RankLost."""
        place, key = self.process, self.process.key()
        try:
            if self._store is None:
                self._store = open_store(place)
                if not place.restarts and place.launcher == TORCHRUN:
                    _lasting(self._store).set(BEGAN, seal({"at": time.time()}, key, BEGAN))
            self._store.set(place.attempt, seal(message, key, place.attempt))
        except RuntimeError as error:
            raise RankLost(f"the store at {self.process.store} is gone ({str(error).splitlines()[0]})") from error

    def dismiss(self, code: int) -> None:
        """End with this exit code: the node agents go as soon as this process has."""
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
        except (ValueError, OSError):  # there is no key: the others have found that out for themselves
            return
        except RankLost as error:
            if self._rendezvous is None:
                print(f"{self._program}: the other ranks could not be told: {error}", file=sys.stderr)

    def _linger(self) -> None:
        """Keep a store that is this process's own until the others have heard, or no longer may come."""
        until = time.monotonic() + LINGER_S
        if self.process.launcher != TORCHRUN and self._store is not None:
            while self._store.add(f"{self.process.attempt}/heard", 0) < self.process.world_size - 1:
                if time.monotonic() > until:
                    return
                time.sleep(LOOK_S)

    def began(self) -> float | None:
        """Return when torchrun had started the processes first, seconds since the epoch; None: it is not known."""
        if self._store is not None:
            store = _lasting(self._store)
            with suppress(ValueError, RuntimeError, ProtocolError):
                if store.check([BEGAN]):
                    return float(opened(store.get(BEGAN), self.process.key(), BEGAN)["at"])
        return None


def _lasting(store: Store) -> Store:
    """Return the part that is kept when the processes are started again: their own part of it is new each time."""
    whole: Store = getattr(store, "underlying_store", store)
    return whole
