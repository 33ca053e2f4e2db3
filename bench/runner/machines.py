"""Rank 0's command under torchrun: it trains with the ranks that torchrun has started, on this host and others.

The process of rank 0 is the command as ever; all others are node agents (`bench.runner.node`).
See docs/reference/machines.md.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.base import interrupts
from bench.base.exitcodes import Exit
from bench.base.hosts import interface_of, on_loopback
from bench.base.usage import UsageError, usage
from bench.config.config import Config
from bench.runner.node import serve
from bench.runner.torchrun import CATALOGUE, Seat, open_store
from ddp.core.errors import ProtocolError, RankLost
from ddp.engine.modes import engine_of
from ddp.remote.secret import opened, seal

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from bench.runner.resume import ResumeSource
    from ddp.remote.rendezvous import RendezvousServer

BEGAN = "machines/began"
"""Name, at torchrun's store, of the time at which it had started the processes first."""


def attended(place: Seat, command: Callable[[Machines | None], int]) -> int:
    """Run `command` where this is rank 0, and serve its rank where not; return the exit code."""
    if place.rank:
        interrupts.leave(serve(place))  # nobody need wait for torch to tidy up
    machines = Machines(place)
    code: int = Exit.INTERNAL
    try:
        code = command(machines)
    except UsageError:
        code = Exit.USAGE
        raise
    except KeyboardInterrupt:
        code = Exit.KILLED
        raise
    finally:
        with interrupts.deferred():
            machines.dismiss(code)
    return code


class Machines:
    """Rank 0's side: what torchrun says of the run, and the ranks that it has started."""

    def __init__(self, place: Seat) -> None:
        self.seat = place
        self._rendezvous: RendezvousServer | None = None
        self._store: Store | None = None

    def settle(self, config: Config) -> Config:
        """Return the configuration with torchrun's world size.

        Raise UsageError where the two contradict each other, RankLost if torchrun's store is gone."""
        place, cluster = self.seat, config.cluster
        if engine_of(config.engine.name).one_process:
            raise UsageError(f"mode={config.engine.name} trains in one process: start it without torchrun")
        if config.world_size not in (None, place.world_size):
            started = f"torchrun has started {place.world_size} processes"
            raise UsageError(f"world_size={config.world_size}, but {started}: leave it out")
        if place.nodes > 1 and cluster.transport == "memory":
            needed = f"needs all ranks on one host, there are {place.nodes}"
            raise UsageError(f"cluster.transport=memory {needed}: leave it out")
        with usage():
            self._open(cluster.bind)
        return replace(config, world_size=place.world_size)

    def left(self, place: Path) -> ResumeSource | Path | None:
        """Return what this command's processes before the last restart left of the run in `place`: what to go on from, or
        the folder of the finished run; None: nothing, or there was no restart."""
        from bench.runner.resume import locate

        if not self.seat.restarts or self._store is None:
            return None
        store = _lasting(self._store)
        with suppress(ValueError, RuntimeError, ProtocolError):  # the run or its first checkpoint was still to come
            if store.check([BEGAN]):
                return locate(place, since=float(opened(store.get(BEGAN), self.seat.key(), BEGAN)["at"]))
        return None

    @property
    def rendezvous(self) -> RendezvousServer:
        """Return where the node agents come; `settle` has opened it."""
        assert self._rendezvous is not None
        return self._rendezvous

    def _open(self, bind: str) -> None:
        """Listen, and announce it at the store. Raise ValueError, OSError, RankLost."""
        if self._rendezvous is not None:
            return
        from ddp.remote.rendezvous import Company, RendezvousServer

        place, (address, interface) = self.seat, interface_of(bind)
        if place.nodes > 1 and ipaddress.ip_address(address).is_loopback and not on_loopback(place.store):
            raise ValueError(
                f"{place.nodes} hosts, but cluster.bind={bind} is loopback: give the network between them, such as "
                "cluster.bind=10.0.0.0/24, or the name of an interface"
            )
        key, run = place.key(), secrets.token_bytes(16)
        if place.nodes > 1:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        company = Company(run, key, place.world_size, place.nodes, place.host_ranks, place.store, CATALOGUE)
        self._rendezvous = RendezvousServer(company, address)
        host, port = self._rendezvous.address
        self._announce({"host": host, "port": port, "run": run.hex()})

    def _announce(self, message: dict[str, Any]) -> None:
        """Seal `message` into the store; the first start notes its time there, too. Raise RankLost."""
        place, key = self.seat, self.seat.key()
        try:
            if self._store is None:
                self._store = open_store(place)
                if not place.restarts:
                    _lasting(self._store).set(BEGAN, seal({"at": time.time()}, key, BEGAN))
            self._store.set(place.attempt, seal(message, key, place.attempt))
        except RuntimeError as error:
            raise RankLost(f"torchrun's store at {self.seat.store} is gone ({str(error).splitlines()[0]})") from error

    def dismiss(self, code: int) -> None:
        """End with this exit code: the node agents go as soon as this process has."""
        if self._rendezvous is not None:
            if cut_off := self._rendezvous.cut_off:
                silent = f"rank {', '.join(map(str, cut_off))} went silent"
                print(f"bench: {silent}: torchrun here may wait 5 minutes for its host", file=sys.stderr)
            self._rendezvous.dismiss(code)
            if self._rendezvous.complete:
                return
        try:
            self._announce({"code": code})
        except (ValueError, OSError):  # there is no key: the others have found that out for themselves
            return
        except RankLost as error:
            if self._rendezvous is None:
                print(f"bench: the other ranks could not be told: {error}", file=sys.stderr)


def _lasting(store: Store) -> Store:
    """Return the part that is kept when the processes are started again: their own part of it is new each time."""
    whole: Store = getattr(store, "underlying_store", store)
    return whole
