"""How ranks find each other: a store that all reach, and what they reduce with once they have met.

The store is that of torchrun, or one that rank 0 opens at MASTER_ADDR:MASTER_PORT, on loopback if that is where it is. Ranks
that see the same folder reduce in it; whether they do is tried, not guessed from host names.
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
from ddp.process.scratch import scratch

NAMES = ("auto", "memory", "gloo", "nccl")
ANSWER_S = 5.0
"""How long the store may take to answer beyond what it is asked to wait, seconds."""
VISIT_S = 0.05
"""How often a rank looks for a new store of rank 0's."""


def open_store(rank: int, world_size: int, timeout_s: float, at: tuple[str, int] | None = None) -> Store:
    """Open the store that the environment speaks of, or that of the process group that is there. One that rank 0 opens, `at`
    this host and port if given, is for one meeting: who was there before waits for the next. Raises ValueError, RankLost."""
    # An agent of torchrun keeps its store when it starts the ranks anew.
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
    """Return the part of `store` that is for the coming group alone, without what an earlier one has left there. Ranks
    count, each for itself, how often they met there. Raises RankLost."""
    try:
        number = answered(lambda: store.add(f"groups of {world_size}/{rank}", 1), ANSWER_S)
    except RuntimeError as error:  # DistStoreError, DistNetworkError
        raise RankLost(f"rank {rank} does not reach the store where ranks meet; is rank 0 gone? {error}") from error
    return PrefixStore(f"group {number} of {world_size}", store)


def _listen(address: str, port: int) -> int:
    """Open a socket that listens at that address alone: torch's own store would listen on every interface."""
    family, kind, protocol, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(1024)
        return listener.detach()


class StoreExchange:
    """Where ranks lay down what the others are to read: texts, once each, in rounds that all make in the same order."""

    def __init__(self, store: Store, rank: int, world_size: int, timeout_s: float) -> None:
        self._store, self._rank, self._size, self._timeout_s = store, rank, world_size, timeout_s
        self._round = 0

    def exchange(self, text: str) -> list[str]:
        """Return everybody's text, by rank. Raises RankLost, naming who did not come."""
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
        """Let go of the store: that of rank 0 listens as long as somebody holds it."""
        del self._store

    def missing(self, grace_s: float) -> list[int]:
        """Return who does not say within so many seconds that something broke. Rank 0's end is the store's."""
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
        time.sleep(0.1 if self._rank == 0 else 0.0)  # the others ask here
        return sorted(silent)


class TorchTransport(gloo.Transport):
    """PyTorch's process group: the default one if there is one, else one that meets at our store."""

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
        """Leave what is ours."""
        if not self._borrowed:
            super().leave()


def make_transport(
    name: str, texts: StoreExchange, store: Store, device: torch.device, rank: int, world_size: int, limit_s: float
) -> tuple[Transport, ExitStack]:
    """Return the transport that all ranks can use, joined, and what to close after it. Raises ValueError, RankLost."""
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
        texts.exchange("here")  # who looks for a rank must find its lock
    else:
        folders.close()
        best = "nccl" if device.type == "cuda" else "gloo"
        transport = TorchTransport(config, best if name == "auto" else name, store)
    transport.join(range(world_size), 0)
    return transport, folders


def _own(folder: Path) -> bool:
    """Return whether it has a token and is this user's alone: anybody may have written its name at the store."""
    try:
        about, token = folder.lstat(), (folder / "token").lstat()
    except OSError:
        return False
    private = about.st_uid == os.getuid() and not about.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    return private and stat.S_ISDIR(about.st_mode) and stat.S_ISREG(token.st_mode)


def _common_folder(texts: StoreExchange, rank: int, folders: ExitStack) -> tuple[bool, Path]:
    """Return whether all ranks see a folder that rank 0 makes, and the folder."""
    offer = ""
    if rank == 0:
        own, token = folders.enter_context(scratch()), secrets.token_hex(16)
        (own / "token").write_text(token)
        offer = f"{own}\n{token}"
    offered = texts.exchange(offer)[0].split("\n")
    folder = Path(offered[0])
    seen = len(offered) == 2 and _own(folder) and (folder / "token").read_text() == offered[1]
    return all(text == "seen" for text in texts.exchange("seen" if seen else "")), folder
