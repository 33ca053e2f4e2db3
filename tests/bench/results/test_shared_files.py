"""Run folders on a file system that shows hosts what was, and in another order: laws over interleavings, in virtual time."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.results import lease, writer
from bench.results.lease import LEASE_S, RENEWAL_S
from bench.results.runfolder import CHECKPOINTS, EVENTS, METRICS
from bench.results.writer import RunWriter
from tests.bench.results.slow_files import Host, Probe, Server, SlowPath, rename, rmtree, utime

CELL = ("mlp", "nccl_cadence", "w2-s0-abc")
PLACE = "/runs/mlp/nccl_cadence/w2-s0-abc"
HOSTS = (("hosta", 1), ("hostb", 1), ("hosta", 2))
"""Containers have equal process numbers; one host may have two."""


class VirtualLease:
    """A lease that the server renews as long as its host lives."""

    def __init__(self, folder: SlowPath) -> None:
        self._folder, self._server = str(folder), folder.server
        assert self._server.host is not None
        self._server.leases[self._folder] = self._server.host, self._server.now + RENEWAL_S

    def release(self) -> None:
        self._server.leases.pop(self._folder, None)


@contextmanager
def shared() -> Iterator[tuple[Server, list[Host]]]:
    """Run folders are written to a server, by hosts that take turns."""
    SlowPath.server = server = Server()
    hosts: list[Host] = []

    def alive(pid: int) -> bool:
        mine = server.host
        return any(h.pid == pid and h.name == lease.HOST and h is not mine and not (h.dead or h.over) for h in hosts)

    def may_be_ok(folder: SlowPath) -> bool:
        try:
            return (folder / METRICS).read().startswith("ok")
        except FileNotFoundError:
            return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "os", SimpleNamespace(rename=rename, utime=utime))
        patch.setattr(writer, "shutil", SimpleNamespace(rmtree=rmtree))
        patch.setattr(writer, "Lease", VirtualLease)
        patch.setattr(writer, "may_be_ok", may_be_ok)
        # A lease that another test has left renews its folder meanwhile.
        own = {
            "getpid": lambda: server.host.pid if server.host else 0,
            "fstat": lambda probe: SimpleNamespace(st_mtime=probe.made),
        }
        patch.setattr(lease, "TemporaryFile", Probe)
        patch.setattr(lease, "os", SimpleNamespace(**vars(os) | own))
        patch.setattr(lease, "HOST", "none")
        patch.setattr(lease, "alive", alive)
        try:
            yield server, hosts
        finally:
            for host in hosts:
                host.dead = True
                while not host.over:
                    host.turn()


def training(server: Server, status: str, seconds: float, checkpoint: bool) -> Callable[[], str]:
    """Return the program of a host that writes one run and takes so long for it."""

    def program() -> str:
        assert server.host is not None
        tag = f"{server.host.name}-{server.host.pid}"
        own = RunWriter(cast(Path, SlowPath("/runs")), *CELL)
        folder = cast(SlowPath, own.path)
        (folder / EVENTS).write_text(tag)
        if checkpoint:
            (folder / CHECKPOINTS).mkdir()
            (folder / CHECKPOINTS / "0001").write_text(tag)
        server.sleep(seconds)
        (folder / METRICS).write_text(f"{status} {tag}")
        return str(own.commit(status))

    return program


def turn(server: Server, host: Host, age: int = 0) -> None:
    server.host, host.age, lease.HOST = host, age, host.name
    host.turn()


def play(server: Server, hosts: list[Host], seed: int, dies: dict[int, int]) -> None:
    """Let hosts take turns until all are at their end. `dies`: number of a host -> its turn in which it goes."""
    drawn, turns = random.Random(seed), dict.fromkeys(range(len(hosts)), 0)
    while left := [number for number, host in enumerate(hosts) if not host.over]:
        server.host = None
        ready = [number for number in left if hosts[number].wakes <= server.now]
        if not ready:
            server.renew(RENEWAL_S, min(hosts[number].wakes for number in left))
            continue
        number = drawn.choice(ready)
        server.renew(RENEWAL_S, server.now + drawn.choice((0.0, 0.0, 0.1, 5.0)))
        turns[number] += 1
        hosts[number].dead |= turns[number] == dies.get(number)
        turn(server, hosts[number], drawn.choice((0, 0, 1, 3, 9, 99)))
        committed = [host for host in hosts if isinstance(host.outcome, str)]
        if any(whole(server, host).startswith("ok") for host in committed) or kept_ok(server):
            continue
        assert not any(status_of(host) == "ok" for host in committed), "a finished run is lost"


def status_of(host: Host) -> str:
    return cast(Any, host).status


def whole(server: Server, host: Host) -> str:
    """Return the result in the place of a host's run; empty: there is none."""
    node = server.tree.get(f"{host.outcome}/{METRICS}")
    return node.text or "" if node is not None else ""


def kept_ok(server: Server) -> bool:
    """Return whether there is a finished run that a host has moved aside or is about to put into place."""
    return any(path.endswith(METRICS) and (node.text or "").startswith("ok") for path, node in server.tree.items())


def left(server: Server) -> dict[str, set[str]]:
    """Return run folder -> the words in its files, without what says how it ended."""
    found: dict[str, set[str]] = {}
    for path, node in server.tree.items():
        if node.text:  # a probe of the clock is empty
            folder = path.removeprefix("/runs/mlp/nccl_cadence/").partition("/")[0]
            found.setdefault(folder, set()).add(node.text.split()[-1])
    return found


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(("ok", "ok", "failed")), st.sampled_from((0.0, 30.0, 400.0)), st.booleans()),
        min_size=2,
        max_size=3,
    ),
    st.integers(0, 2**32),
    st.dictionaries(st.integers(0, 2), st.integers(1, 60), max_size=2),
)
def test_writers_of_one_run_leave_one_whole_run(
    runs: list[tuple[str, float, bool]], seed: int, dies: dict[int, int]
) -> None:
    with shared() as (server, hosts):
        for (name, pid), (status, seconds, checkpoint) in zip(HOSTS, runs, strict=False):
            host = Host(name, pid, training(server, status, seconds, checkpoint))
            cast(Any, host).status = status
            hosts.append(host)
        play(server, hosts, seed, dies)
        living = [host for number, host in enumerate(hosts) if not host.dead]
        for host in living:
            assert isinstance(host.outcome, str), host.outcome
        server.renew(RENEWAL_S, server.now + 2 * LEASE_S)
        last = Host("hostc", 1, lambda: RunWriter(cast(Path, SlowPath("/runs")), *CELL).discard())
        hosts.append(last)
        while not last.over:
            turn(server, last)
        assert last.outcome is None
        folders = left(server)
        assert all(len(tags) == 1 for tags in folders.values()), "a folder has files of one writer"
        assert not [name for name in folders if name.startswith(".old-")]
        if any(status_of(host) == "ok" for host in living):
            assert server.tree[f"{PLACE}/{METRICS}"].text.split()[0] == "ok"  # type: ignore[union-attr]
        for name in folders:
            if name.startswith(".tmp-"):  # of somebody who died: what is whole or can be gone on with is kept
                parts = [path for path in server.tree if f"/{name}/" in path]
                assert any(path.endswith(METRICS) or CHECKPOINTS in path for path in parts)
