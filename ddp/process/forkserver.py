"""The fork server: a process that has imported torch once, from which ranks are forked in milliseconds.

Started as early as possible, so that its imports run beside the parent's own. Python's `multiprocessing` does the work.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext
from pathlib import Path
from types import ModuleType
from typing import Any

from ddp.process.resource_errors import enough

PRELOAD = (
    "ddp.engine.rank",
    "ddp.backends.allreduce",
    "ddp.backends.snapshot",
    "ddp.replica.sketch_kernel",
    "torch._dynamo",
)
"""What every rank needs; the first optimizer that a process makes imports `torch._dynamo`, which takes seconds."""
NAMES = "DDP_PRELOAD"
"""The environment variable by which the server knows what else to import, a line each: a file's name may have spaces."""
GIVEN = "DDP_GIVEN"
"""The one by which it knows what the user has of the variables that were set for it alone."""

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "THP_MEM_ALLOC_ENABLE": "1",
}
"""What libraries read once, where the user has not set it. One thread a rank. Loopback only, whatever the host's name is.
The C library keeps what is freed: a step asks for the same again, and new memory from the system costs a fault for every
4 kB. Large tensors lie in pages of 2 MB: samples from all over a data set are copied a tenth to a third faster."""
_hiding = threading.Lock()


def warm(preload: tuple[str, ...] = ()) -> ForkServerContext:
    """Start the server if it does not run yet; `preload` are modules that it imports besides torch and the engine.

    The modules of the first call count: the server lives as long as the process, for all its runs. Raises OutOfResources.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ddp.process.preloaded"])
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # Ctrl-C reaches the whole group of processes; only the parent may act on it. The server inherits that it is held back,
    # and the parent gets what came meanwhile. Python's tracker of resources lets go of the signal when it is started, so it
    # goes first.
    with enough("the tracker of resources cannot be started"):
        resource_tracker.ensure_running()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    before = {name: os.environ.get(name) for name in (*PATHS, NAMES, GIVEN)}
    try:
        os.environ.update(_paths(before) | {NAMES: "\n".join(preload)})
        with enough("the fork server cannot be started"):
            forkserver.ensure_running()
    finally:
        for variable, earlier in before.items():
            if earlier is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = earlier
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return context


def resume() -> None:
    """Let the server go on, if it runs and somebody has stopped it: who asks it for a process, or for the end of one, would
    wait for ever. So does Python's tracker of resources, which would outlive this process."""
    server: Any = forkserver._forkserver  # neither has a public name
    tracker: Any = resource_tracker._resource_tracker
    for number in (server._forkserver_pid, tracker._pid):
        if number is not None:
            with suppress(OSError):  # it is gone, or its number is another's
                os.kill(number, signal.SIGCONT)


PATHS = ("PYTHONSAFEPATH", "PYTHONPATH")
_ROOT = Path(__file__).parents[2]


def _paths(before: Mapping[str, str | None]) -> dict[str, str]:
    """Return variables by which the server finds this package, whatever the present folder has of its name: Python's own
    server looks there first, until it gets the parent's path."""
    own = {} if str(_ROOT) in sysconfig.get_paths().values() else {"PYTHONPATH": str(_ROOT)}
    if own and before["PYTHONPATH"]:
        own["PYTHONPATH"] += f"{os.pathsep}{before['PYTHONPATH']}"
    given = {name: value for name, value in before.items() if value is not None}
    return {"PYTHONSAFEPATH": "1", GIVEN: json.dumps(given), **own}


@contextmanager
def script_left_alone() -> Iterator[None]:
    """Start processes inside that do not run the user's script again, as those of `multiprocessing` do.

    What a rank needs is sent to it. So a script works without `if __name__ == "__main__"`, and its top level does not
    run once for every rank. Nor do they hear of a start method that others registered here, such as joblib's `loky`: they
    would not know it."""
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
