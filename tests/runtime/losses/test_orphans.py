"""A parent that is killed while others of its processes are stopped: nothing of the run stays, neither process nor file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest

from tests.slow import slow
from tests.warm import PICTURES, Process, Warm, wait_for

QUIET = ("report=false", "validate=false", "checkpoint.every=0")
GOING = ("model=mlp", "data.name=digits", "mode=cpu_cadence", "world_size=2", "train.epochs=100000", *QUIET)


def members(session: int) -> dict[int, psutil.Process]:
    """Processes of a session by number, without those that have ended."""
    found = {}
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = process
    return found


def within(seconds: float, what: Callable[[], bool]) -> bool:
    """Whether it has come true in time."""
    until = time.monotonic() + seconds
    while not what() and time.monotonic() < until:
        time.sleep(0.02)
    return what()


@pytest.fixture
def going(warm: Warm, tmp_path: Path) -> Iterator[Process]:
    """A run of two ranks that trains, and goes on doing so."""
    process = warm.start(tmp_path, "-m", "bench", *GOING, env={PICTURES: "none"})
    try:
        assert wait_for(lambda: "epoch      2/" in process.printed(), process), process.printed()
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill_all()


def begun(beside: psutil.Process) -> bool:
    """Whether it has made itself nicer than this process; where nothing can, some time after it was started."""
    if (own := psutil.Process().nice()) < 19:
        return beside.nice() > own
    return time.time() > beside.create_time() + 10.0


def ranks_and_server(parent: int) -> tuple[list[psutil.Process], psutil.Process]:
    """The ranks of that process, and the server that they were forked from."""
    others = members(parent)
    del others[parent]
    (server,) = {each.ppid() for each in others.values() if each.ppid() in others}
    return [each for each in others.values() if each.ppid() == server], others[server]


@pytest.mark.parametrize("stopped", ["a rank", "the fork server", *slow("all ranks", "ranks and server")])
def test_a_parent_that_is_killed_takes_stopped_processes_along(going: Process, stopped: str) -> None:
    ranks, server = ranks_and_server(going.pid)
    assert len(ranks) == 2
    sockets = {Path(each.laddr).parent for each in server.net_connections("unix") if each.laddr}
    assert sockets
    chosen = {
        "a rank": ranks[1:],
        "all ranks": ranks,
        "the fork server": [server],
        "ranks and server": [*ranks, server],
    }
    for process in chosen[stopped]:
        process.suspend()
    os.kill(going.pid, signal.SIGKILL)
    assert within(10.0, lambda: not members(going.pid)), members(going.pid)
    assert within(5.0, lambda: not list(Path("/dev/shm").glob(f"ddp-run-{going.pid}-*"))), "its files in memory stay"
    assert within(5.0, lambda: not any(folder.exists() for folder in sockets)), "the folder of its sockets stays"


def test_without_the_kernels_word_the_fork_server_ends_stopped_ranks(warm: Warm, tmp_path: Path) -> None:
    """As on systems that have none."""
    (tmp_path / "silent.py").write_text(
        "import sys, runpy\nfrom ddp.process import orphans\norphans.at_parents_end = lambda number: None\n"
        "from bench.__main__ import main\nsys.exit(main())\n"
    )
    process = warm.start(tmp_path, "silent.py", *GOING, env={PICTURES: "none"})
    with closing(_Ended(process)):
        assert wait_for(lambda: "epoch      2/" in process.printed(), process)
        ranks, _ = ranks_and_server(process.pid)
        ranks[1].suspend()
        os.kill(process.pid, signal.SIGKILL)
        assert within(10.0, lambda: not members(process.pid)), members(process.pid)


class _Ended:
    """Ends a command and all that it started."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def close(self) -> None:
        """End them."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill_all()


@pytest.mark.parametrize(
    "words",
    [
        "from bench.dashboard.process import DashboardProcess\n"
        "b = DashboardProcess(Path(sys.argv[1])); pid = b._process.pid",
        "from bench.loggers.process import LoggerProcesses; from bench.loggers import RunInfo\n"
        "said = RunInfo('mlp', 'solo', 'w1', 'h', 1, 'accuracy')\n"
        "b = LoggerProcesses(('tensorboard',), Path(sys.argv[1]), Path(sys.argv[1]), said)\n"
        "pid = b._processes['tensorboard'].pid",
    ],
    ids=["dashboard", "logger"],
)
def test_what_stands_beside_a_run_ends_with_it_though_it_is_stopped(tmp_path: Path, words: str) -> None:
    code = f"import sys, time; from pathlib import Path\n{words}\nprint(pid, flush=True); time.sleep(600)"
    run = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    beside = psutil.Process(int(run.stdout.readline()))
    try:
        assert within(60.0, lambda: begun(beside)), "it has not begun"
        beside.suspend()
        run.kill()
        run.communicate()
        assert within(30.0, lambda: not beside.is_running() or beside.status() == psutil.STATUS_ZOMBIE)
    finally:
        run.kill()
        with suppress(psutil.NoSuchProcess):
            beside.kill()
