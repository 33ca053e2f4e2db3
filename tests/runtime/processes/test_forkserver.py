"""What every rank inherits."""

from __future__ import annotations

import multiprocessing
import platform
import resource
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from ddp.process import forkserver, scratch

MEGABYTES_8 = 1 << 21
"""Elements of float32."""


def _step() -> None:
    activations = [torch.ones(MEGABYTES_8) for _ in range(4)]
    del activations


def _faults(end: Connection) -> None:
    for _ in range(3):
        _step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        _step()
    end.send(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_a_rank_keeps_the_memory_that_a_step_gives_back() -> None:
    """New memory from the system would cost a fault for each page of it: 81,920 here."""
    ours, theirs = multiprocessing.Pipe()
    process = forkserver.warm().Process(target=_faults, args=(theirs,))
    process.start()
    assert ours.poll(60.0)
    assert ours.recv() < 1000
    process.join()


class _Foreign(multiprocessing.context.SpawnContext):  # as joblib's `loky` registers one
    _name = "foreign"


def test_processes_hear_of_no_start_method_that_they_do_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(multiprocessing.context._concrete_contexts, "foreign", _Foreign())  # type: ignore[attr-defined]
    before = multiprocessing.get_start_method(allow_none=True)
    try:
        multiprocessing.set_start_method("foreign", force=True)
        with forkserver.script_left_alone():
            assert multiprocessing.get_start_method() == "forkserver"
        assert multiprocessing.get_start_method() == "foreign"
    finally:
        multiprocessing.set_start_method(before, force=True)


_KILLED_WHILE_IT_STARTS_A_RANK = """
import os, signal
from multiprocessing import forkserver as theirs
from ddp.process import forkserver

context = forkserver.warm()
connect = theirs.connect_to_new_process
def killed(fds):
    connect(fds)  # the process is forked and waits for what it shall do
    os.kill(os.getpid(), signal.SIGKILL)
theirs.connect_to_new_process = killed
context.Process(target=print).start()
"""


def test_a_parent_killed_while_it_starts_a_rank_leaves_no_traceback() -> None:
    command = [sys.executable, "-c", _KILLED_WHILE_IT_STARTS_A_RANK]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (-9, "")


_STARTED_IN_A_THREAD_THAT_ENDS = """
import threading, time
from ddp.process import forkserver

def start():
    forkserver.warm()
    time.sleep(0.8)  # the server imports

starting = threading.Thread(target=start)
starting.start()
starting.join()
time.sleep(0.3)
print(forkserver.ended())
"""


def test_the_thread_that_starts_the_server_may_end() -> None:
    """The kernel took it for the parent's end, and killed the server while it imported."""
    command = [sys.executable, "-c", _STARTED_IN_A_THREAD_THAT_ENDS]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "False\n", "")


_KILLED_AT_ONCE = """
import os, signal
from multiprocessing import util
from ddp.process import forkserver

forkserver.warm()
print(util.get_temp_dir(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_sockets_of_a_parent_killed_at_once_are_removed_by_the_next_run() -> None:
    """Its fork server is killed while it imports, and removes nothing."""
    ended = subprocess.run([sys.executable, "-c", _KILLED_AT_ONCE], capture_output=True, text=True, timeout=60)
    assert ended.returncode == -9
    folder = Path(ended.stdout.strip())
    scratch.tidy(folder.parent)
    assert not folder.exists()
