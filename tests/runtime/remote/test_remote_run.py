"""The command as torchrun starts it: one process a rank, with torchrun's environment. On one host, and as if on two.

`benchmarks/machines.py` does it with torchrun itself and two hosts made of namespaces.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from torch.distributed import TCPStore

from bench.results.runfolder import Run, find_runs
from tests.slow import slow
from tests.warm import Process, Warm, wait_for

QUIET = ("report=false", "validate=false")
FEW = "data.name=digits"
"""A fifth of the samples of the model's own data: where every step is a round, that is enough of them."""


@contextmanager
def started(warm: Warm, folder: Path, *words: str, nodes: int = 1, size: int = 2) -> Iterator[list[Process]]:
    """The command in as many processes as torchrun would start, on `nodes` hosts that are this one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        store = TCPStore(
            "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )  # as torchrun's agent has it
    each = size // nodes
    processes = []
    try:
        for rank in range(size):
            env = {
                "TORCHELASTIC_RUN_ID": "test", "TORCHELASTIC_USE_AGENT_STORE": "True", "DDP_KEY": "k" * 32,
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank % each),
                "LOCAL_WORLD_SIZE": str(each), "GROUP_RANK": str(rank // each), "GROUP_WORLD_SIZE": str(nodes),
                "WARM_PICTURES": "none",
            }  # fmt: skip
            processes.append(warm.start(folder, "-m", "bench", *words, *QUIET, env=env))
        yield processes
    finally:
        for process in processes:
            process.kill_all()
        del store


def ended(processes: list[Process]) -> list[int]:
    """Exit codes."""
    return [process.wait(90.0) for process in processes]


def the_run(folder: Path) -> Run:
    (run,), problems = find_runs(folder / "runs")
    assert problems == []
    return run


def forked(warm: Warm, folder: Path, *words: str) -> Run:
    """The same command by itself, with ranks that it forks."""
    alone = folder / "forked"
    alone.mkdir()
    code, _, err = warm.start(alone, "-m", "bench", *words, *QUIET, env={"WARM_PICTURES": "none"}).result()
    assert (code, err) == (0, "")
    return the_run(alone)


def told(process: Process) -> str:
    """What it said to stderr."""
    process._err.seek(0)
    return str(process._err.read())


def left(process: Process, patience_s: float = 10.0) -> list[psutil.Process]:
    """Processes of a command that has ended which have not gone in time: a fork server takes a moment."""
    until = time.monotonic() + patience_s
    while there := [each for each in psutil.process_iter() if _group(each) == process.pid]:
        if time.monotonic() > until:
            return there
        time.sleep(0.05)
    return []


def _group(process: psutil.Process) -> int:
    try:
        gone = process.status() == psutil.STATUS_ZOMBIE
        return 0 if gone else os.getpgid(process.pid)
    except (psutil.NoSuchProcess, ProcessLookupError):
        return 0


@pytest.mark.slow
def test_one_host_trains_as_if_ranks_had_been_forked(warm: Warm, tmp_path: Path) -> None:
    """The same bits, through shared memory."""
    words = ("model=mlp", "mode=nccl_sync", FEW, "train.epochs=1", "world_size=2")
    with started(warm, tmp_path, *words) as processes:
        assert ended(processes) == [0, 0], told(processes[0]) + told(processes[1])
        assert [told(process) for process in processes] == ["", ""]
    ours, theirs = the_run(tmp_path), forked(warm, tmp_path, *words)
    assert ours.metrics.params_sha256 == theirs.metrics.params_sha256
    assert ours.metrics.transport == "memory"
    assert ours.metrics.run_id == theirs.metrics.run_id


def test_two_hosts_share_nothing_but_the_connection(warm: Warm, tmp_path: Path) -> None:
    """Snapshots, averages, velocities and slices go over it: the same bits as with forked ranks."""
    words = ("model=mlp", "mode=cpu_sync", FEW, "train.epochs=2", "world_size=2", "averaging.outer=nesterov")
    with started(warm, tmp_path, *words, nodes=2) as processes:
        assert ended(processes) == [0, 0], told(processes[0]) + told(processes[1])
    ours, theirs = the_run(tmp_path), forked(warm, tmp_path, *words)
    assert ours.metrics.params_sha256 == theirs.metrics.params_sha256
    assert ours.metrics.launcher is not None
    assert ours.metrics.launcher.hosts == [os.uname().nodename] * 2
    assert any("on 2 hosts" in warning for warning in ours.metrics.warnings)
    slices = [json.loads(line) for line in (ours.path / "events.jsonl").read_text().splitlines()]
    assert {line["rank"] for line in slices if line["type"] == "Slice" and line["kind"] == "forward"} == {0, 1}
    about = json.loads((ours.path / "timeline.json").read_text())["otherData"]
    assert (about["clock"], about["hosts"]) == ("CLOCK_MONOTONIC, 2 hosts, compared at the start", 2)
    assert 0 < about["clock_error_us"] < 1e6


@pytest.mark.slow
def test_links_are_emulated_between_hosts(warm: Warm, tmp_path: Path) -> None:
    """By clocks that are compared at the start: as slow as was set, with the same bits."""
    words = ("model=mlp", "mode=nccl_sync", FEW, "train.epochs=1", "world_size=2")
    with started(warm, tmp_path, *words, "cluster.links=[5ms/1gbit]", nodes=2) as processes:
        assert ended(processes) == [0, 0], told(processes[0]) + told(processes[1])
    ours, theirs = the_run(tmp_path), forked(warm, tmp_path, *words)
    assert ours.metrics.params_sha256 == theirs.metrics.params_sha256
    assert any("emulated links" in warning for warning in ours.metrics.warnings)
    sync = ours.metrics.sync
    assert sync is not None
    assert sync.ms_p50 is not None
    assert sync.ms_p50 >= 9.0, "5 ms there and back, less what clocks are off"


@pytest.mark.slow
def test_a_run_over_two_hosts_goes_on_from_its_checkpoint(warm: Warm, tmp_path: Path) -> None:
    """The parts come together on the first host, and go out again: the bits of a run that nobody disturbed."""
    words = ("model=mlp", "mode=cpu_sync", FEW, "train.epochs=8", "train.batch_size=32", "averaging.outer=momentum")
    with started(warm, tmp_path, *words, "checkpoint.spacing_s=0", nodes=2) as processes:
        wait_for(lambda: kept(tmp_path), processes[0])
        for process in processes:
            process.kill_all()
    place = kept(tmp_path)[-1]
    assert sorted(path.name for path in place.iterdir()) == ["books", "model.pt", "rank-0.pt", "rank-1.pt"]
    with started(warm, tmp_path, f"resume={place.parents[1]}", nodes=2) as processes:
        assert ended(processes) == [0, 0], told(processes[0]) + told(processes[1])
    metrics = the_run(tmp_path).metrics
    assert metrics.resumed is not None
    assert metrics.params_sha256 == forked(warm, tmp_path, *words).metrics.params_sha256


def kept(folder: Path) -> list[Path]:
    """The checkpoints of a run that goes on, or was killed, behind the first one."""
    return sorted(books.parent for books in folder.glob("runs/*/*/.tmp-*/checkpoints/0000[0-9][1-9]/books"))


@pytest.mark.parametrize(
    "words",
    [("mode=nccl_sync", FEW, "train.epochs=10"), *slow((("mode=cpu_async", "train.epochs=5"),))],
    ids=["nccl_sync", "cpu_async"],
)
def test_a_host_that_dies_is_gone_on_without(warm: Warm, tmp_path: Path, words: tuple[str, ...]) -> None:
    words = ("model=mlp", *words, "cluster.deadline_s=4")
    with started(warm, tmp_path, *words, nodes=2) as processes:
        wait_for(lambda: re.search(r"epoch +2/", processes[0].printed()), processes[0])
        os.killpg(processes[1].pid, signal.SIGKILL)
        assert processes[0].wait(90.0) == 0, told(processes[0])
        assert "rank 1 is lost" in processes[0].printed()
        assert left(processes[0]) == []
    metrics = the_run(tmp_path).metrics
    assert metrics.status == "ok"
    assert [(fault.rank, fault.kind) for fault in metrics.faults] == [(1, "lost")]
    assert metrics.final.eval is not None
    assert metrics.final.eval > 0.95


@pytest.mark.parametrize("number", [*slow(signal.SIGKILL), signal.SIGSTOP])
def test_ranks_do_not_outlive_the_coordinator(warm: Warm, tmp_path: Path, number: signal.Signals) -> None:
    """Whether its end is heard of or not: a clear error within the deadline, and no process left."""
    words = ("model=mlp", "mode=nccl_cadence", FEW, "train.epochs=1000", "cluster.deadline_s=2")
    with started(warm, tmp_path, *words, nodes=2) as processes:
        wait_for(lambda: "epoch    2/1000" in processes[0].printed(), processes[0])
        os.killpg(processes[0].pid, number)
        assert processes[1].wait(30.0) == 5
        why = "hung up|reset" if number == signal.SIGKILL else "nothing was heard for 2.0 s"
        assert re.search(
            rf"bench: rank 1 ends: the coordinator at 127.0.0.1:\d+ is lost: .*({why})", told(processes[1])
        )
        assert left(processes[1]) == []


def test_a_run_that_may_lose_nobody_fails_with_a_name(warm: Warm, tmp_path: Path) -> None:
    words = ("model=mlp", "mode=cpu_cadence", "train.epochs=1000", "cluster.tolerate_loss=false")
    with started(warm, tmp_path, *words, "cluster.faults=[1@50:crash]", nodes=2) as processes:
        assert ended(processes) == [5, 5]
        assert "rank 1: its process is gone (killed by signal 9)" in told(processes[0])


def test_what_cannot_be_is_said_once_and_ends_all(warm: Warm, tmp_path: Path) -> None:
    with started(warm, tmp_path, "model=mlp", "mode=nccl_sync", "world_size=3") as processes:
        assert ended(processes) == [2, 2]
        assert told(processes[0]) == "bench: world_size=3, but torchrun has started 2 processes: leave it out\n"
        assert told(processes[1]) == ""


@pytest.mark.skipif("MACHINES" not in os.environ, reason="starts its processes cold; part of `make machines`")
def test_torchrun_itself(tmp_path: Path) -> None:
    words = (
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "bench",
        "model=mlp",
        "mode=cpu_async",
        "train.epochs=5",
        *QUIET,
    )
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    metrics = the_run(tmp_path).metrics
    assert (metrics.status, metrics.world_size) == ("ok", 2)
