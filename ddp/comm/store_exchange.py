"""How ranks find each other: a store that all of them reach, and the transport that they use afterwards.

The store is that of torchrun, or one that rank 0 opens at MASTER_ADDR:MASTER_PORT, on loopback if that is the address.
Ranks that see the same folder reduce in shared memory. This is tested with a file, not guessed from host names.
"""

from __future__ import annotations

import os
import secrets
import socket
import stat
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore  # what torch.distributed exports

from ddp.comm.store_answer import answered
from ddp.comm.transports import gloo
from ddp.comm.transports.base import Transport, TransportConfig
from ddp.comm.transports.memory import Transport as Memory
from ddp.core.errors import RankLost
from ddp.launcher.interfaces import is_loopback
from ddp.process.scratch import scratch

NAMES = ("auto", "memory", "gloo", "nccl")
ANSWER_S = 5.0
"""Seconds that the store may take to answer, beyond the time that it is asked to wait."""
VISIT_S = 0.05
"""Seconds between two attempts of a rank to find a new store of rank 0."""


def open_store(rank: int, world_size: int, timeout_s: float, at: tuple[str, int] | None = None) -> Store:
    """Open the store described by the environment, or that of torch's default process group. `at`: (host, port) instead of
    MASTER_ADDR and MASTER_PORT. A store that rank 0 opens serves one meeting: a rank that has used it already waits for the
    next one. Raises ValueError, RankLost."""
    # torchrun's agent keeps its store when it restarts the ranks.
    prefix = f"ddp/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    if dist.is_available() and dist.is_initialized():
        return PrefixStore(prefix, dist.distributed_c10d._get_default_store())
    if world_size == 1:
        return HashStore()
    address, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), os.environ.get("MASTER_PORT", "")
    if at is not None:
        address, port = at[0], str(at[1])
    if not (port.isdecimal() and 0 < int(port) < 1 << 16):
        remedy = "start ranks with torchrun, or give all of them the same free port there"
        raise ValueError(f"MASTER_PORT is {port or 'not set'}: {remedy}")
    timeout = timedelta(seconds=timeout_s)
    agent = at is None and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    until = time.monotonic() + timeout_s

    def visit() -> tuple[Store, bool]:
        listener = _listen(address, int(port)) if rank == 0 and not agent else None
        store = TCPStore(
            address,
            int(port),
            world_size,
            is_master=listener is not None,
            timeout=timeout,
            wait_for_workers=False,
            master_listen_fd=listener,
        )
        return store, agent or rank == 0 or store.add(f"{prefix}/visits/{rank}", 1) == 1

    while True:
        try:
            store, new = answered(visit, max(until - time.monotonic(), 0.0) + ANSWER_S)
            if new:
                return PrefixStore(prefix, store)
            why = "it is where ranks met before, and rank 0 has not left it"
        except (OSError, RuntimeError) as error:
            why = str(error)
        if rank == 0 or time.monotonic() > until:
            where = f"{address}:{port} (MASTER_ADDR, MASTER_PORT)"
            raise RankLost(f"rank {rank} finds no store at {where}; does rank 0 run, and is the port free? {why}")
        time.sleep(VISIT_S)


def fresh_store(store: Store, rank: int, world_size: int) -> Store:
    """Return a part of `store` for the new group only, without keys of earlier groups. Each rank counts the groups that it
    has joined there. Raises RankLost."""
    try:
        number = answered(lambda: store.add(f"groups of {world_size}/{rank}", 1), ANSWER_S)
    except RuntimeError as error:  # DistStoreError, DistNetworkError
        raise RankLost(f"rank {rank} does not reach the store where ranks meet; is rank 0 gone? {error}") from error
    return PrefixStore(f"group {number} of {world_size}", store)


def _listen(address: str, port: int) -> int:
    """Open a socket that listens at this address only: torch's own store would listen on every interface. Raises OSError;
    ValueError for a name that is loopback here while there are ranks on other hosts."""
    answers = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    here = [str(where[0]) for *_, where in answers]
    if address not in here and all(map(is_loopback, here)) and _several_hosts():
        raise ValueError(
            f"MASTER_ADDR={address} is {here[0]} on rank 0's host (/etc/hosts), which other hosts do not reach: give the "
            "address of rank 0's host"
        )
    for family, kind, protocol, _, where in answers:
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(where)
            except OSError:
                if where == answers[-1][-1]:
                    raise
                continue
            listener.listen(1024)
            return listener.detach()
    raise OSError(f"{address} has no address")


def _several_hosts() -> bool:
    size, here = (os.environ.get(name, "") for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    return size.isdecimal() and here.isdecimal() and int(size) > int(here)


class StoreExchange:
    """Exchanges texts through a store, in rounds that all ranks make in the same order."""

    def __init__(self, store: Store, rank: int, world_size: int, timeout_s: float) -> None:
        self._store, self._rank, self._size, self._timeout_s = store, rank, world_size, timeout_s
        self._round = 0

    def exchange(self, text: str) -> list[str]:
        """Return every rank's text, by rank. Raises RankLost, naming a rank that did not come."""
        self._round += 1
        texts = []
        try:
            self._store.set(f"{self._round}/{self._rank}", text)
            for rank in range(self._size):
                key = f"{self._round}/{rank}"
                texts.append(answered(partial(self._await, key), self._timeout_s + ANSWER_S))
        except RuntimeError as error:  # DistStoreError, DistNetworkError
            late = f"rank {len(texts)} did not come within {self._timeout_s:g} s, or rank 0 is gone"
            rule = "every rank must make the same groups and wrap the same models"
            raise RankLost(f"{late}: {rule} ({error})") from error
        return texts

    def _await(self, key: str) -> str:
        self._store.wait([key], timedelta(seconds=self._timeout_s))
        return self._store.get(key).decode()

    def close(self) -> None:
        """Release the store. Rank 0's store listens until its last reference is gone."""
        del self._store

    def missing(self, grace_s: float) -> list[int]:
        """Return the ranks that do not report a broken collective within `grace_s` seconds. If the store itself does not
        answer, rank 0 is gone."""
        try:
            return answered(partial(self._silent, grace_s), grace_s + ANSWER_S)
        except RuntimeError:
            return [0]

    def _silent(self, grace_s: float) -> list[int]:
        silent = set(range(self._size)) - {self._rank}
        until = time.monotonic() + grace_s
        self._store.set(f"broken/{self._rank}", "")
        while silent and time.monotonic() < until:
            silent -= {rank for rank in silent if self._store.check([f"broken/{rank}"])}
            time.sleep(0.01)
        time.sleep(0.1 if self._rank == 0 else 0.0)  # the other ranks still query the store
        return sorted(silent)


class TorchTransport(gloo.Transport):
    """PyTorch's process group: the default one if it is initialized, otherwise one formed through our store."""

    def __init__(self, config: TransportConfig, name: str, store: Store) -> None:
        super().__init__(config)
        self.name, self._store = name, store
        self._borrowed = dist.is_initialized()

    def join(self, members: Sequence[int], generation: int, lives: Sequence[int] = ()) -> None:
        """Form the group."""
        if self._borrowed:
            self.name = dist.get_backend()
            return
        dist.init_process_group(
            self.name,
            store=PrefixStore("torch", self._store),
            rank=self.config.rank,
            world_size=self.config.world_size,
            timeout=timedelta(seconds=self.config.limit_s),
        )
        del self._store

    def leave(self) -> None:
        """Destroy the process group, unless it is the user's own."""
        if not self._borrowed:
            super().leave()


def make_transport(
    name: str, texts: StoreExchange, store: Store, device: torch.device, rank: int, world_size: int, limit_s: float
) -> tuple[Transport, ExitStack]:
    """Return (the fastest transport that all ranks can use, joined; what to close after it). Raises ValueError,
    RankLost."""
    folders = ExitStack()
    shared, folder = False, Path()
    if name in ("auto", "memory") and device.type == "cpu":
        shared, folder = _common_folder(texts, rank, folders)
    else:
        texts.exchange("no folder")
        texts.exchange("")
    if name == "memory" and not shared:
        folders.close()
        raise ValueError("transport=memory needs all ranks on one host, on CPUs; use auto")
    config = TransportConfig(folder, rank, world_size, device, limit_s, limit_s)
    transport: Transport
    if shared and Memory.applies(config):
        transport = Memory(config)
        texts.exchange("here")  # every rank's lock must exist before others look for it
    else:
        folders.close()
        best = "nccl" if device.type == "cuda" else "gloo"
        transport = TorchTransport(config, best if name == "auto" else name, store)
    transport.join(range(world_size), 0)
    return transport, folders


def _own(folder: Path) -> bool:
    """Return whether the folder has a token and is private to this user: anyone may have written its name to the store."""
    try:
        about, token = folder.lstat(), (folder / "token").lstat()
    except OSError:
        return False
    private = about.st_uid == os.getuid() and not about.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    return private and stat.S_ISDIR(about.st_mode) and stat.S_ISREG(token.st_mode)


def _boot() -> str:
    """Return what distinguishes this host's running system from others; empty if it is unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _common_folder(texts: StoreExchange, rank: int, folders: ExitStack) -> tuple[bool, Path]:
    """Return (whether all ranks see a folder made by rank 0, the folder)."""
    offer = ""
    if rank == 0:
        own, token = folders.enter_context(scratch()), secrets.token_hex(16)
        (own / "token").write_text(token)
        offer = f"{own}\n{token}\n{_boot()}"
    offered = texts.exchange(offer)[0].split("\n")
    folder = Path(offered[0])
    near = len(offered) == 3 and offered[2] == _boot()  # hosts may share a file system, but no memory
    seen = near and _own(folder) and (folder / "token").read_text() == offered[1]
    return all(text == "seen" for text in texts.exchange("seen" if seen else "")), folder
