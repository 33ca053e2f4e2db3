"""What torchrun's environment means, and what contradicts it. No processes."""

from __future__ import annotations

import base64
import errno
import ipaddress
import json
import os
import signal
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from torch.distributed import HashStore

from bench.base.paths import BASELINES
from bench.base.usage import UsageError
from bench.command.run import run
from bench.config.config import Choice, ClusterConfig, Config
from bench.config.config_checks import Machine
from bench.config.run_warnings import warnings_of
from bench.runner.machines import Machines, attended
from ddp.core.errors import ProtocolError, RankLost
from ddp.launcher.interfaces import interface_of, on_loopback
from ddp.remote import head, launched_node, secret
from ddp.remote import launched_process as processes
from ddp.remote.first_start import first_start
from ddp.remote.launched_process import LaunchedProcess, launched_process
from tests.bench.planned import BASE, planned

ENVIRONMENT = {
    "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "2", "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "first", "MASTER_PORT": "29400",
}  # fmt: skip


def test_a_process_of_torchruns_knows_its_seat() -> None:
    assert launched_process(ENVIRONMENT) == LaunchedProcess(
        *(3, 4, 1, 2, 2, "first:29400", "machines", 2), job="none", local_rank=1
    )
    found = launched_process(ENVIRONMENT | {"MASTER_ADDR": "fd00::1"})
    assert found is not None
    assert found.store == "[fd00::1]:29400"


@pytest.mark.parametrize("without", ["TORCHELASTIC_RUN_ID", "WORLD_SIZE"])
def test_elsewhere_and_alone_there_is_none(without: str) -> None:
    """Variables that other launchers set as well mean nothing."""
    assert launched_process({key: value for key, value in ENVIRONMENT.items() if key != without}) is None
    assert launched_process(ENVIRONMENT | {"WORLD_SIZE": "1"}) is None


@pytest.mark.parametrize(
    ("engine", "changes", "nodes", "why"),
    [
        ("elche", {"world_size": 3}, 1, "world_size=3, but torchrun has started 4 processes: leave it out"),
        ("solo", {}, 1, "mode=solo trains in one process"),
        ("graph", {}, 2, "mode=graph trains in one process"),
        ("elche", {"cluster": ClusterConfig(transport="memory")}, 2, "cluster.transport=memory needs all ranks on one"),
        ("elche", {"cluster": ClusterConfig(restart="always")}, 1, "torchrun has started these: leave them out"),
        ("elche", {"cluster": ClusterConfig(spares=1)}, 1, "torchrun has started these: leave them out"),
        ("elche", {"cluster": ClusterConfig(absent=1)}, 1, "torchrun has started these: leave them out"),
        ("elche", {"cluster": ClusterConfig(bind="10.255.0.0/16")}, 1, "no address, network or interface"),
        ("elche", {"cluster": ClusterConfig(bind="0.0.0.0")}, 1, "no address, network or interface"),
        ("elche", {"cluster": ClusterConfig(bind="eth99")}, 1, "no address, network or interface"),
        ("elche", {}, 2, r"cluster.bind=127\.0\.0\.1 is loopback: give the network between them"),
    ],
)
def test_what_contradicts_torchrun_is_refused(engine: str, changes: dict[str, Any], nodes: int, why: str) -> None:
    there = Machines(LaunchedProcess(0, 4, 0, nodes, 2, "192.0.2.1:29400", "machines/0"))
    said = Config(engine=Choice(engine), **changes)
    with pytest.raises(UsageError, match=why):
        there.settle(said)


def test_several_hosts_need_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DDP_KEY", raising=False)
    monkeypatch.delenv("DDP_KEY_FILE", raising=False)
    for rank in (0, 1):
        with pytest.raises(ValueError, match=r"2 hosts need a key, .* DDP_KEY_FILE: openssl"):
            LaunchedProcess(rank, 2, rank, 2, 1, "first:1", "machines/0").key()


def test_one_host_has_its_users_own_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Made once, for nobody else to read; what others may have written is none."""
    monkeypatch.delenv("DDP_KEY", raising=False)
    monkeypatch.delenv("DDP_KEY_FILE", raising=False)
    monkeypatch.setattr(secret, "places", lambda: (tmp_path, tmp_path))
    place = LaunchedProcess(0, 2, 0, 1, 2, "localhost:1", "machines/0")
    key = place.key()
    assert len(key) == secret.KEY_BYTES
    assert place.key() == key
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    with pytest.raises(
        ValueError, match="is not this user's key alone: remove it, or name another one in DDP_KEY_FILE"
    ):
        place.key()
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="remove it"):
        place.key()
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(ValueError, match="remove it"):
        place.key()
    monkeypatch.setattr(os, "getuid", lambda: 4711)  # another user's, under the name of one's own
    (tmp_path / "ddp-key-4711").write_bytes(key)
    (tmp_path / "ddp-key-4711").chmod(0o600)
    with pytest.raises(ValueError, match="remove it"):
        place.key()


def test_where_memory_is_full_the_key_is_on_the_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each start of each rank left a file there, and failed."""
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    for folder in (memory, disk):
        folder.mkdir()
    monkeypatch.setattr(secret, "places", lambda: (memory, disk))
    there = os.link

    def link(made: Path, path: Path) -> None:
        if path.parent == memory:
            raise OSError(errno.ENOSPC, "No space left on device")
        there(made, path)

    monkeypatch.setattr(os, "link", link)
    key = secret.own_key()
    assert not list(memory.iterdir())
    monkeypatch.setattr(os, "link", there)
    assert secret.own_key() == key, "the next rank finds room, but this key is there"


def test_a_store_that_anybody_reaches_shows_no_key_and_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of torchrun listens on all interfaces: rank 0 tells no secret there, and a rank takes nobody else's word."""
    place, store = LaunchedProcess(1, 2, 0, 1, 2, "127.0.0.1:1", "machines/0"), HashStore()
    monkeypatch.setattr(head, "open_store", lambda place: store)
    key, stranger = b"k" * 32, b"s" * 32
    monkeypatch.setenv("DDP_KEY", key.decode())
    there = Machines(replace(place, rank=0))
    there.settle(Config(engine=Choice("elche")))
    there.rendezvous.close()
    shown = store.get(place.attempt)
    for form in (key, key.hex().encode(), base64.b64encode(key)):
        assert form not in shown
    told = processes.announced(place, key, store)
    assert (told["host"], told["port"]) == there.rendezvous.address
    elsewhere = {"host": "127.0.0.1", "port": 1, "run": "00" * 16, "key": stranger.hex()}
    for lie in (
        json.dumps(elsewhere),
        secret.seal(elsewhere, stranger, place.attempt),
        secret.seal({"code": 0}, key, "machines/1"),  # what was true once
        shown.replace(b"127.0.0.1", b"127.0.0.2"),
        b"[" * 100_000,
        b"17",
    ):
        store.set(place.attempt, lie)
        with pytest.raises(ProtocolError, match="as the store has it, is not to be believed"):
            processes.announced(place, key, store)


def test_the_first_start_that_listens_counts_as_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start 0 may fail before that. If no start noted itself then, none would find what the others left."""
    store = HashStore()
    monkeypatch.setattr(head, "open_store", lambda place: store)
    monkeypatch.setenv("DDP_KEY", "k" * 32)
    starts = [Machines(LaunchedProcess(0, 2, 0, 1, 2, "127.0.0.1:1", "machines", 1)) for _ in range(3)]
    before = time.time()
    for there in starts:
        there.settle(Config(engine=Choice("elche")))
        there.rendezvous.close()
    assert starts[0].began is None
    assert starts[1].began is not None
    assert before <= starts[1].began <= time.time()
    assert starts[2].began == starts[1].began
    assert [there.restarts for there in starts] == [1, 1, 2], "this host's agent counts some starts, the store others"
    assert first_start(store, b"s" * 32) is None, "a stranger's word"


def test_where_to_listen_is_said_by_address_interface_or_network() -> None:
    name = "lo0" if sys.platform == "darwin" else "lo"
    for bind in ("127.0.0.1", "127.0.0.0/8", name):
        assert interface_of(bind) == ("127.0.0.1", name)
    for interface, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            if address.family.name == "AF_INET":
                assert interface_of(address.address) == (address.address, interface)


def test_a_store_on_loopback_is_told_from_others() -> None:
    assert on_loopback("127.0.0.1:29400")
    assert on_loopback("[::1]:29400")
    assert not on_loopback("192.0.2.1:29400")
    assert ipaddress.ip_address("192.0.2.1").is_private


@pytest.mark.parametrize(("error", "code"), [(UsageError("no"), 2), (KeyboardInterrupt(), 130), (RuntimeError(), 6)])
def test_others_are_told_how_the_command_ended(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    told: list[int] = []
    monkeypatch.setattr(Machines, "dismiss", lambda self, code: told.append(code))

    def command(there: object) -> int:
        raise error

    with pytest.raises(type(error)):
        attended(LaunchedProcess(0, 2, 0, 1, 2, "first:1", "machines/0"), command)
    assert attended(LaunchedProcess(0, 2, 0, 1, 2, "first:1", "machines/0"), lambda there: 5) == 5
    assert told == [code, 5]


@pytest.mark.parametrize("gone", [RankLost("rank 0 finds no store at first:1"), RuntimeError("Broken pipe")])
def test_a_store_that_is_gone_is_a_failure_and_no_defect(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], gone: Exception
) -> None:
    def refuse(*_: object) -> None:
        raise gone

    there = Machines(LaunchedProcess(0, 2, 0, 1, 2, "first:1", "machines/0"))
    monkeypatch.setattr(head, "open_store", lambda place: SimpleNamespace(set=refuse, add=refuse))
    assert run(["model=mlp", "mode=nccl_sync"], (), BASELINES, there) == 5
    said = capsys.readouterr().err
    assert said.startswith("bench: ")
    assert "store at first:1" in said
    assert len(said.splitlines()) == 1


def test_only_torchrun_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever else may have started this process."""
    killed: list[int] = []
    monkeypatch.setattr(launched_node, "_end", lambda pid, patience_s: killed.append(pid))
    words = [["python", "-m", "pytest"]]
    monkeypatch.setattr(psutil.Process, "cmdline", lambda self: words[0])
    launched_node._end_launcher(os.getppid())
    assert killed == []
    words[0] = ["/usr/bin/python", "/usr/bin/torchrun", "--nnodes=2"]
    launched_node._end_launcher(os.getpid())
    assert killed == []
    launched_node._end_launcher(os.getppid())
    assert killed == [os.getppid()]


def test_a_torchrun_that_waits_for_its_store_is_killed() -> None:
    """It took leave of a store behind a cut link for more than four minutes."""
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        agent.stdout.readline()
        launched_node._end(agent.pid, 0.2)
        assert agent.wait(30) == -signal.SIGKILL


def test_ranks_are_counted_by_host() -> None:
    """Four ranks on two hosts of two cores each are not too many; and the results say that there are two."""
    said = warnings_of(BASE, 4, Machine(2, hosts=2))
    assert said == ("on 2 hosts: the machine shown is rank 0's",)
    assert any("oversubscribed" in line for line in warnings_of(BASE, 4, Machine(2)))


def test_where_rank_0_listens_makes_no_other_cell() -> None:
    one, other = (planned(cluster=ClusterConfig(bind=bind)).spec for bind in ("127.0.0.1", "lo"))
    assert one.config_hash == other.config_hash
    assert other.config["cluster"]["bind"] == "lo"


def test_a_rank_0_that_never_says_where_it_listens_is_not_waited_for_without_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "READY_S", -1.0)
    with pytest.raises(RankLost, match="rank 0 did not say within -1 s where it listens: was it killed"):
        processes.announced(LaunchedProcess(1, 2, 0, 1, 2, "127.0.0.1:29400", "machines/0"), b"k" * 32, HashStore())
