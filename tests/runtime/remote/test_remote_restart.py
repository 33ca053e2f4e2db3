"""`torchrun --max-restarts`: what it starts again goes on from the checkpoint. With the store that its agent keeps, and,
where `MACHINES` is set, with torchrun itself."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from torch.distributed import TCPStore

from bench.results.schema import Metrics
from tests.runtime.remote.test_remote_run import ended, kept, the_run, told
from tests.warm import PICTURES, Process, Warm, wait_for

ROOT = Path(__file__).parents[3]
SAVED = ("checkpoint.spacing_s=0", "report=false", "validate=false")
WORDS = ("model=mlp", "mode=nccl_sync", "data.name=digits", "train.epochs=18", "train.batch_size=32", *SAVED)
Start = Callable[..., list[Process]]


@pytest.fixture
def agent(warm: Warm, tmp_path: Path) -> Iterator[Start]:
    """Starts both processes, or only one, as an agent of torchrun on this host would, without a key. `restarts`: what each
    is told of earlier starts; agents of several hosts count them apart."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    processes: list[Process] = []

    def start(*restarts: int) -> list[Process]:
        size = len(restarts)
        env = {
            "TORCHELASTIC_RUN_ID": "test", "TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(size), "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "DDP_KEY": "", "DDP_KEY_FILE": "",
            PICTURES: "none",
        }  # fmt: skip
        words = (*WORDS, *(["world_size=2"] if size == 1 else []))
        started = [
            warm.start(tmp_path, "-m", "bench", *words, env=env | own)
            for rank, count in enumerate(restarts)
            for own in [{"RANK": str(rank), "LOCAL_RANK": str(rank), "TORCHELASTIC_RESTART_COUNT": str(count)}]
        ]
        processes.extend(started)
        return started

    yield start
    for process in processes:
        process.kill_all()
    del store


def gone_on(metrics: Metrics) -> None:
    """It was started again once, and trained every sample once."""
    assert (metrics.status, metrics.restarts) == ("ok", 1)
    assert metrics.resumed is not None
    assert metrics.resumed.epochs >= 2
    assert [row.epoch for row in metrics.epochs] == list(range(18))
    assert metrics.ledger is not None
    assert metrics.ledger.exactly_once
    assert "torchrun started its processes again once" in metrics.warnings


def test_what_is_started_again_goes_on_from_its_checkpoint(agent: Start, tmp_path: Path) -> None:
    """That rank 1's host was started again is no restart for the agent of rank 0's."""
    processes = agent(0, 0)
    wait_for(lambda: kept(tmp_path), processes[0])
    os.kill(processes[1].pid, signal.SIGKILL)
    os.kill(processes[0].pid, signal.SIGTERM)  # so the agent ends the others
    assert ended(processes) == [130, -signal.SIGKILL]
    processes = agent(0, 1)
    assert ended(processes) == [0, 0], told(processes[0]) + told(processes[1])
    assert "goes on from" in processes[0].printed()
    gone_on(the_run(tmp_path).metrics)
    assert ended(agent(1, 2)) == [0, 0]
    assert the_run(tmp_path).metrics.restarts == 1, "it was finished, and is not trained again"


def test_the_only_process_goes_on_from_its_checkpoint(agent: Start, tmp_path: Path) -> None:
    """It forks its ranks. It began anew, and did not say that it had been started before."""
    (process,) = agent(0)
    wait_for(lambda: kept(tmp_path), process)
    os.kill(process.pid, signal.SIGKILL)
    assert ended([process]) == [-signal.SIGKILL]
    (process,) = agent(1)
    assert ended([process]) == [0], told(process)
    gone_on(the_run(tmp_path).metrics)


@pytest.mark.slow
def test_what_others_left_there_is_not_gone_on_from(agent: Start, tmp_path: Path) -> None:
    """A run that was killed long before this command is begun anew, however often torchrun starts its processes."""
    processes = agent(0, 0)
    wait_for(lambda: kept(tmp_path), processes[0])
    for process in processes:
        os.killpg(process.pid, signal.SIGKILL)
    assert ended(processes) == [-signal.SIGKILL] * 2
    for path in tmp_path.rglob("config.json"):
        os.utime(path, (1e9, 1e9))
    assert ended(agent(1, 1)) == [0, 0]
    metrics = the_run(tmp_path).metrics
    assert (metrics.resumed, metrics.restarts) == (None, 1)
    assert "once, and the run began anew: no checkpoint of before was found" in " ".join(metrics.warnings)


@contextmanager
def torchrun(folder: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """torchrun as one types it, with all that it starts ended on leaving."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DDP_KEY")}
    with (folder / "err").open("w") as err:
        command = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *words], cwd=folder,
            env=environment | {"PYTHONPATH": str(ROOT)}, stdout=err, stderr=err, start_new_session=True,
        )  # fmt: skip
        try:
            yield command
        finally:
            for process in psutil.process_iter():
                with suppress(ProcessLookupError, psutil.Error):
                    if os.getsid(process.pid) == command.pid:
                        process.kill()
            command.wait()


@pytest.mark.skipif("MACHINES" not in os.environ, reason="starts its processes cold; part of `make machines`")
def test_torchrun_itself_starts_again_what_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    words = ("--standalone", "--nproc-per-node=2", "--max-restarts=1", "-m", "bench", *WORDS)
    with torchrun(tmp_path, *words) as command:
        while not kept(tmp_path):
            assert command.poll() is None, (tmp_path / "err").read_text()
            time.sleep(0.01)
        for process in psutil.Process(command.pid).children():
            if process.environ().get("RANK") == "1":
                process.kill()
        assert command.wait(90) == 0, (tmp_path / "err").read_text()
    gone_on(the_run(tmp_path).metrics)
