"""The fork server: a process that has imported torch once, from which ranks are forked in milliseconds.

Started as early as possible, so that its imports run while the parent does its own. Uses Python's `multiprocessing`."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

from ddp.process import scratch
from ddp.process.resource_errors import enough

PRELOAD = (
    "ddp.engine.rank",
    "ddp.backends.allreduce",
    "ddp.backends.snapshot",
    "ddp.replica.evidence.sketch_kernel",
    "torch._dynamo",
)
"""Modules that every rank needs. Creating the first optimizer imports `torch._dynamo`, which takes seconds."""
NAMES = "DDP_PRELOAD"
"""Environment variable with more modules for the server to import, one per line, as a file's name may contain spaces."""
GIVEN = "DDP_GIVEN"
"""Environment variable with the user's values of the variables that are changed for the server alone."""

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "THP_MEM_ALLOC_ENABLE": "1",
    "RUST_LOG": "error",
}
"""Variables that libraries read once, set unless the user has set them. One OpenMP thread per rank. Gloo uses loopback,
whatever the host's name resolves to. malloc keeps freed memory, as each step allocates the same again, and new memory costs
a page fault for every 4 kB. Large tensors use pages of 2 MB: gathering random samples is a tenth to a third faster."""
_hiding = threading.Lock()


def warm(preload: tuple[str, ...] = ()) -> ForkServerContext:
    """Start the server if it does not run yet. `preload`: modules that it imports besides torch and the engine.

    Only the first call's modules count, as the server lives as long as the process, for all its runs. Raises
    OutOfResources."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ddp.process.preloaded"])
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    _own_sockets()
    # Ctrl-C signals the whole process group, but only the parent may act on it. The server inherits the blocked signal,
    # and the
    # parent receives it once unblocked. Python's resource tracker unblocks the signal when it is started, so it must be
    # started
    # first.
    with enough("the tracker of resources cannot be started"):
        resource_tracker.ensure_running()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    before = {name: os.environ.get(name) for name in (*PATHS, NAMES, GIVEN)}
    try:
        os.environ.update(_paths(before) | {NAMES: "\n".join(preload)})
        with enough("the fork server cannot be started"):
            _in_lasting_thread(forkserver.ensure_running)
    finally:
        for variable, earlier in before.items():
            if earlier is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = earlier
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return context


def _in_lasting_thread(start: Callable[[], None]) -> None:
    """Call `start` in a thread that lasts as long as this process: the kernel takes the end of the thread that started
    the server for the parent's end (`orphans.at_parents_end`). Other threads inherit this one's blocked signals."""
    if threading.current_thread() is threading.main_thread():
        start()
        return
    done: Future[None] = Future()
    server: Any = forkserver._forkserver

    def work() -> None:
        before = server._forkserver_pid
        try:
            start()
            done.set_result(None)
        except BaseException as error:
            done.set_exception(error)
        if server._forkserver_pid != before:
            threading.Event().wait()

    threading.Thread(target=work, name="fork server's parent", daemon=True).start()
    done.result()


def _own_sockets() -> None:
    """Have `multiprocessing` put sockets into a folder that others remove if this process is killed; nobody would remove
    the one that it makes."""
    config: Any = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    if config.get("tempdir") is None:  # else it is in use already, perhaps by this process's parent
        config["tempdir"] = str(scratch.lasting())


def resume() -> None:
    """Continue the server if somebody has stopped it: the parent would wait forever for it to start or reap a process.
    Continue also Python's resource tracker, which would outlive this process."""
    server: Any = forkserver._forkserver  # neither has a public name
    tracker: Any = resource_tracker._resource_tracker
    for number in (server._forkserver_pid, tracker._pid):
        if number is not None:
            with suppress(OSError):  # the process is gone, or its PID was reused
                os.kill(number, signal.SIGCONT)


def ended() -> bool:
    """Return whether the server has run and is gone. Its processes end with it (`orphans.bind_rank`)."""
    server: Any = forkserver._forkserver
    number = server._forkserver_pid
    try:
        return number is not None and psutil.Process(number).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


PATHS = ("PYTHONSAFEPATH", "PYTHONPATH")
_ROOT = Path(__file__).parents[2]


def _paths(before: Mapping[str, str | None]) -> dict[str, str]:
    """Return variables with which the server imports this package even if the current folder contains another of its name:
    Python's fork server searches the current folder first, until it gets the parent's `sys.path`."""
    own = {} if str(_ROOT) in sysconfig.get_paths().values() else {"PYTHONPATH": str(_ROOT)}
    if own and before["PYTHONPATH"]:
        own["PYTHONPATH"] += f"{os.pathsep}{before['PYTHONPATH']}"
    given = {name: value for name, value in before.items() if value is not None}
    return {"PYTHONSAFEPATH": "1", GIVEN: json.dumps(given), **own}


@contextmanager
def script_left_alone() -> Iterator[None]:
    """Start processes inside the `with` block that do not run the user's script again, as `multiprocessing` would.

    Ranks get what they need in messages. So a script works without `if __name__ == "__main__"`, and its top level does not
    run once per rank. The block also hides a start method that others registered, such as joblib's `loky`, which the new
    processes would not know."""
    with _hiding, _known_method():
        script, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = script


@contextmanager
def _known_method() -> Iterator[None]:
    before = multiprocessing.get_start_method(allow_none=True)
    if before is None or before in multiprocessing.get_all_start_methods():
        yield
        return
    multiprocessing.set_start_method("forkserver", force=True)
    try:
        yield
    finally:
        multiprocessing.set_start_method(before, force=True)
