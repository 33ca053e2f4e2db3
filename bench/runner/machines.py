"""The command under torchrun: which process it is, and what that means. The one place that knows torchrun.

The process of rank 0 is the command as ever; all others are node agents (`ddp.remote`), which need none of its words:
they are told at torchrun's store where rank 0 listens, or that it does not. See docs/machines.md.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from bench import models
from bench.base import interrupts
from bench.base.exitcodes import Exit
from bench.base.usage import UsageError, reason, usage
from bench.models.setup import Recipe
from bench.runner.config import Config
from ddp.core.errors import EngineError, ProtocolError, RankLost
from ddp.engine import facts
from ddp.process.orphans import at_parents_end
from ddp.remote.handshake import shared_key
from ddp.remote.secret import opened, own_key, seal

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from bench.runner.resume import ResumeSource
    from ddp.remote.rendezvous import RendezvousServer

CATALOGUE = {"models.make_task": (models.make_task, (str, Recipe, str))}
"""Tasks that may be ordered from another host."""
STORE_S = 60.0
"""How long torchrun's store may take to answer."""
AGENT_S = 15.0
"""What torchrun gets to end, where the link to its store is cut."""
READY_S = 300.0
"""How long node agents wait for rank 0 to say where it listens: behind its imports and configuration, before its data."""
LOOK_S = 0.05
BEGAN = "machines/began"
"""Name, at torchrun's store, of the time at which it had started the processes first."""
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


def seat(environ: Mapping[str, str]) -> Seat | None:
    """None where this is no process of torchrun's, or its only one."""
    if "TORCHELASTIC_RUN_ID" not in environ or environ.get("WORLD_SIZE", "1") == "1":
        return None
    names = ("RANK", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_WORLD_SIZE")
    rank, world_size, node, nodes, host_ranks = (int(environ[name]) for name in names)
    host, restarts = environ["MASTER_ADDR"], int(environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    store = f"[{host}]:{environ['MASTER_PORT']}" if ":" in host else f"{host}:{environ['MASTER_PORT']}"
    return Seat(rank, world_size, node, nodes, host_ranks, store, f"machines/{restarts}", restarts)


def attended(place: Seat, command: Callable[[Machines | None], int]) -> int:
    """Run `command` where this is rank 0, and serve its rank where not; the exit code."""
    if place.rank:
        interrupts.leave(_serve(place))  # nobody need wait for torch to tidy up
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
        """The configuration with torchrun's world size. Raises UsageError where the two contradict each other, RankLost if
        torchrun's store is gone."""
        place, cluster = self.seat, config.cluster
        if facts(config.engine.name).one_process:
            raise UsageError(f"mode={config.engine.name} trains in one process: start it without torchrun")
        if config.world_size not in (None, place.world_size):
            raise UsageError(
                f"world_size={config.world_size}, but torchrun has started {place.world_size} processes: leave it out"
            )
        if place.nodes > 1 and cluster.transport == "memory":
            raise UsageError(
                f"cluster.transport=memory needs all ranks on one host, there are {place.nodes}: leave it out"
            )
        with usage():
            self._open(cluster.bind)
        return replace(config, world_size=place.world_size)

    def left(self, place: Path) -> ResumeSource | Path | None:
        """What this command's processes before the last restart left of the run in `place`: what to go on from, or the
        folder of the finished run; None: nothing, or there was no restart."""
        from bench.runner.resume import locate

        if not self.seat.restarts or self._store is None:
            return None
        store = _lasting(self._store)
        with suppress(ValueError, RuntimeError, ProtocolError):  # the run or its first checkpoint was still to come
            if store.check([BEGAN]):
                return locate(place, since=float(opened(store.get(BEGAN), _key(self.seat), BEGAN)["at"]))
        return None

    @property
    def rendezvous(self) -> RendezvousServer:
        """Where the node agents come; `settle` has opened it."""
        assert self._rendezvous is not None
        return self._rendezvous

    def _open(self, bind: str) -> None:
        """Listen, and say so at the store. Raises ValueError, OSError, RankLost."""
        if self._rendezvous is not None:
            return
        from ddp.remote.rendezvous import Company, RendezvousServer

        place, (address, interface) = self.seat, interface_of(bind)
        if place.nodes > 1 and ipaddress.ip_address(address).is_loopback and not _loopback(place.store):
            raise ValueError(
                f"{place.nodes} hosts, but cluster.bind={bind} is loopback: give the network between them, such as "
                "cluster.bind=10.0.0.0/24, or the name of an interface"
            )
        key, run = _key(place), secrets.token_bytes(16)
        if place.nodes > 1:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        self._rendezvous = RendezvousServer(
            Company(run, key, place.world_size, place.nodes, place.host_ranks, place.store, CATALOGUE), address
        )
        host, port = self._rendezvous.address
        self._say({"host": host, "port": port, "run": run.hex()})

    def _say(self, message: dict[str, Any]) -> None:
        """At the store, and when the first start did so. Raises RankLost."""
        place, key = self.seat, _key(self.seat)
        try:
            if self._store is None:
                self._store = _open_store(place)
                if not place.restarts:
                    _lasting(self._store).set(BEGAN, seal({"at": time.time()}, key, BEGAN))
            self._store.set(place.attempt, seal(message, key, place.attempt))
        except RuntimeError as error:
            raise RankLost(f"torchrun's store at {self.seat.store} is gone ({str(error).splitlines()[0]})") from error

    def dismiss(self, code: int) -> None:
        """All is over, with this exit code: the node agents go as soon as this process has."""
        if self._rendezvous is not None:
            if cut_off := self._rendezvous.cut_off:
                print(
                    f"bench: rank {', '.join(map(str, cut_off))} went silent: torchrun here may wait 5 minutes for its host",
                    file=sys.stderr,
                )
            self._rendezvous.dismiss(code)
            if self._rendezvous.complete:
                return
        try:
            self._say({"code": code})
        except (ValueError, OSError):  # there is no key: the others have found that out for themselves
            return
        except RankLost as error:
            if self._rendezvous is None:
                print(f"bench: the other ranks could not be told: {error}", file=sys.stderr)


def _key(place: Seat) -> bytes:
    """The secret of all processes; where nobody gave them one and they are on one host, their user's own. Raises ValueError,
    OSError."""
    key = shared_key(os.environ)
    if key is None and place.nodes > 1:
        raise ValueError(f"{place.nodes} hosts need a key, or anybody could take a rank's place: {REMEDY}")
    return key or own_key()


def _lasting(store: Store) -> Store:
    """What is kept there when the processes are started again: their own part of it is new each time."""
    whole: Store = getattr(store, "underlying_store", store)
    return whole


def _open_store(place: Seat) -> Store:
    """Raises RankLost."""
    from ddp.comm.store_exchange import open_store

    return open_store(place.rank, place.world_size, STORE_S)


def _serve(place: Seat) -> int:
    """Serve rank 0 until it says that all is over; its exit code."""
    at_parents_end(signal.SIGCONT)  # stopped, it would not notice that rank 0 is gone with torchrun
    try:
        with usage():
            key = _key(place)
        store = _open_store(place)
        said = _told(place, key, store)
        return int(said["code"]) if "code" in said else _attend(place, said, key, store)
    except (EngineError, OSError) as error:
        why = reason(error) if isinstance(error, OSError) else error
        print(f"bench: rank {place.rank} ends: {why}", file=sys.stderr)
        return Exit.FAILED


def _told(place: Seat, key: bytes, store: Store) -> dict[str, Any]:
    """What rank 0 says at the store. Raises RankLost, ProtocolError if it was somebody else who said it."""
    until = time.monotonic() + READY_S
    try:
        while not store.check([place.attempt]):
            if time.monotonic() > until:
                raise RankLost(
                    f"rank 0 did not say within {READY_S:g} s where it listens: was it killed? See what it printed"
                )
            time.sleep(LOOK_S)
        text = store.get(place.attempt)
    except RuntimeError as error:  # the store is gone
        raise RankLost(f"rank 0 is gone before the run began ({str(error).splitlines()[0]})") from error
    try:
        return opened(text, key, place.attempt)
    except ProtocolError as error:
        raise ProtocolError(
            f"where rank 0 listens, as torchrun's store has it, is not to be believed: {error}"
        ) from error


def _over(place: Seat, key: bytes, store: Store) -> int | None:
    """The exit code of rank 0's command, if that has ended before this process came; it says so at the store then."""
    with suppress(EngineError):
        said = _told(place, key, store)
        return int(said["code"]) if "code" in said else None
    return None


def _attend(place: Seat, said: dict[str, Any], key: bytes, store: Store) -> int:
    from ddp.process import forkserver
    from ddp.remote.agent import NodeAgent, Post, arrive
    from ddp.remote.wire import Silent

    address = (str(said["host"]), int(said["port"]))
    if place.nodes > 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface_of(_way_to(address))[1])
    forkserver.warm(("sklearn.datasets", *models.MODELS.values()))
    launcher = os.getppid()
    post = Post(address, key, bytes.fromhex(said["run"]), place.rank, place.node, CATALOGUE)
    try:
        wire, clock = arrive(post, STORE_S, lambda: _over(place, key, store) is not None)
        with NodeAgent(post, wire, clock) as agent:
            return agent.serve()
    except EngineError as error:
        silent = isinstance(error, Silent)
        if not silent and (code := _over(place, key, store)) is not None:
            return code
        if place.node and silent:
            _end_launcher(launcher)
        raise RankLost("the coordinator at {}:{} is lost: {}".format(*address, error)) from error


def _end_launcher(pid: int) -> None:
    """End torchrun here as Ctrl-C would: behind a link that is cut it would wait for its store until the kernel gives up, a
    quarter of an hour."""
    with suppress(psutil.Error, OSError):
        words = psutil.Process(pid).cmdline()
        if os.getppid() == pid and any("torchrun" in word or word == "torch.distributed.run" for word in words):
            _end(pid, AGENT_S)


def _end(pid: int, patience_s: float) -> None:
    """SIGTERM, and SIGKILL for who still lives after `patience_s`: torchrun takes leave of a store that does not answer, a
    minute for each word. That second signal is of a process that outlives this one."""
    last = [sys.executable, "-c", _LAST_WORD, str(pid), str(patience_s)]
    nowhere = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
    os.posix_spawn(sys.executable, last, os.environ, file_actions=nowhere, setpgroup=0)
    os.kill(pid, signal.SIGTERM)


_LAST_WORD = """
import sys, psutil
process = psutil.Process(int(sys.argv[1]))
if psutil.wait_procs([process], float(sys.argv[2]))[1]:
    process.kill()
"""


def _loopback(store: str) -> bool:
    """Whether torchrun's own store is on loopback, so that its "hosts" are agents on one."""
    try:
        found = socket.getaddrinfo(store.rpartition(":")[0].strip("[]"), None)
    except OSError:
        return False
    return all(ipaddress.ip_address(str(where[0])).is_loopback for *_, where in found)


def _way_to(address: tuple[str, int]) -> str:
    """The address of this host from which that one is reached. Raises OSError."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def interface_of(bind: str) -> tuple[str, str]:
    """(address, interface) of this host, by an address, an interface's name, or the network that it is in. Raises
    ValueError."""
    here = [
        (name, ipaddress.ip_address(found.address))
        for name, addresses in psutil.net_if_addrs().items()
        for found in addresses
        if found.family in (socket.AF_INET, socket.AF_INET6) and "%" not in found.address
    ]
    try:
        network = ipaddress.ip_network(bind, strict=False)
    except ValueError:
        fitting = sorted((int(address.version), str(address), name) for name, address in here if name == bind)
    else:
        fitting = [(0, str(address), name) for name, address in here if address in network]
    if not fitting:
        there = ", ".join(f"{address} ({name})" for name, address in here)
        raise ValueError(
            f"cluster.bind={bind} is no address, network or interface of the host of rank 0, which has {there}; with "
            "several hosts give their network, as any of them may get rank 0"
        )
    return fitting[0][1:]
