"""Commands and scripts as processes that import nothing: forked from one process that has imported torch once.

All of it is real (processes in a session of their own, signals, a fork server, ranks, exit codes); what is left out is the
start of the interpreter and the imports, which are most of a short command's time. This module is both ends: `Warm` in the
tests, `serve` in the process that is forked from.

Why the fork server is forked as well: started as it is, it would import torch again for every command. It is a copy of the
command as that was then, its modules among it: a test of what is imported where starts its command cold.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from multiprocessing import util
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FORK_SERVER = "from multiprocessing.forkserver import main"
PICTURES = "WARM_PICTURES"
"""Set to `none`, a command draws no timeline, which takes as long as the training of a small run."""
PRELOAD = (
    "bench.command.cli",
    "bench.runner.resume",
    "bench.command.run",
    "bench.runner.automatic_restart",
    "bench.runner.preflight",
    "bench.runner.side_by_side",
    "bench.timeline.figure",
    "bench.timeline.html",
    "bench.report",
    "bench.validate",
    "ddp.backends.snapshot",
    "ddp.backends.allreduce",
    "ddp.engine.elche",
    "ddp.engine.solo",
    "ddp.trainer",
    "bench.models.mlp",
    "bench.models.data.digits",
    "torch._dynamo",
    "tests.composed_once",
)


class Process:
    """One command. What it prints goes to files, so that nobody needs to read along."""

    def __init__(self, line: socket.socket, out: Any, err: Any) -> None:
        self._line, self._out, self._err = line, out, err
        self._said = b""
        self.returncode: int | None = None
        """Exit code, or minus the signal that killed it; None while it runs, as far as known."""
        self.pid, self._minder = map(int, self._hear(180.0).split())
        """Also the number of its session and group."""

    def _hear(self, timeout_s: float) -> bytes:
        """The next line from its minder. Raises TimeoutError."""
        self._line.settimeout(timeout_s)
        while b"\n" not in self._said:
            more = self._line.recv(100)
            assert more, "the process that commands are forked from is gone"
            self._said += more
        line, _, self._said = self._said.partition(b"\n")
        return line

    def poll(self) -> int | None:
        with suppress(BlockingIOError, TimeoutError):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout_s: float = 250.0) -> int:
        """Its exit code. Raises TimeoutError."""
        if self.returncode is None:
            self.returncode = int(self._hear(timeout_s))
            self._line.close()
            with suppress(ProcessLookupError):
                while True:  # its minder has nothing left to do but to go
                    os.kill(self._minder, 0)
                    time.sleep(0.001)
        return self.returncode

    def result(self, timeout_s: float = 250.0) -> tuple[int, str, str]:
        """Its exit code, output and errors, once it has ended; it is forgotten then."""
        try:
            code = self.wait(timeout_s)
            return code, *map(_read, (self._out, self._err))
        finally:
            self.kill_all()

    def printed(self) -> str:
        """What it has printed so far."""
        size = os.fstat(self._out.fileno()).st_size
        return os.pread(self._out.fileno(), size, 0).decode()

    def kill_all(self) -> None:
        """SIGKILL for it and all that it started; it is forgotten then."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.wait()
        self._out.close()
        self._err.close()


def _read(file: Any) -> str:
    file.seek(0)
    return str(file.read())


class WarmServer:
    """The process that commands are forked from. It imports nothing until somebody connects, and ends with its owner."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="warm-")
        self.path = f"{self._folder.name}/line"
        """Where it listens, for any number of tests."""
        theirs, self._owned = os.pipe()
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.path)
            listener.listen(64)
            fds = (listener.fileno(), theirs)
            code = f"from tests.warm import serve; serve{fds}"
            self._process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=environment, pass_fds=fds)
        os.close(theirs)

    def close(self) -> None:
        os.close(self._owned)
        self._process.kill()  # it may still import
        self._process.wait()
        self._folder.cleanup()


class Warm:
    """A line to a server, to one's own if there is none at `path`; a context manager. End all commands before it ends."""

    def __init__(self, path: str | None = None) -> None:
        self._own = None if path else WarmServer()
        self._line = socket.socket(socket.AF_UNIX)
        self._line.connect(path or self._own.path)  # type: ignore[union-attr]

    def __enter__(self) -> Warm:
        return self

    def __exit__(self, *_: object) -> None:
        self._line.close()
        if self._own is not None:
            self._own.close()

    def start(
        self, folder: Path, *words: str, env: Mapping[str, str] | None = None, stdout: int | None = None
    ) -> Process:
        """`python <words>` in `folder`: a script and its arguments, or `-m` and a module and its arguments.

        `stdout`: a descriptor of the caller's to print to.
        """
        ours, theirs = socket.socketpair()
        out, err = (tempfile.TemporaryFile("w+", encoding="utf-8") for _ in range(2))  # noqa: SIM115
        asked = json.dumps({"folder": str(folder), "words": words, "env": dict(env or {})}).encode()
        fds = [theirs.fileno(), out.fileno() if stdout is None else stdout, err.fileno()]
        socket.send_fds(self._line, [len(asked).to_bytes(4, "big") + asked], fds)
        theirs.close()
        return Process(ours, out, err)


def serve(listening: int, owned: int) -> None:
    """Fork a command for every request of whoever connects, until the other end of `owned` is closed."""
    listener, lines = socket.socket(fileno=listening), list[socket.socket]()
    if owned in select.select([listening, owned], [], [])[0]:
        return
    for name in PRELOAD:
        importlib.import_module(name)
    gc.freeze()  # collections in what is forked leave these alone
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # minders are nobody's business
    while True:
        ready, _, _ = select.select([owned, listener, *lines], [], [])
        if owned in ready:
            os._exit(0)  # torch takes a second to tidy up what nobody will see
        if listener in ready:
            lines.append(listener.accept()[0])
        for line in filter(ready.__contains__, tuple(lines)):
            head, fds, _, _ = socket.recv_fds(line, 4, 3)
            if not head:
                lines.remove(line)
                line.close()
                continue
            asked = json.loads(line.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL))
            if _fork() == 0:
                for open_here in (listener, *lines):
                    open_here.close()
                os.close(owned)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _mind(asked, *fds)
                return
            for fd in fds:
                os.close(fd)


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # of threads, which libraries have started and can do without
        return os.fork()


def _mind(asked: dict[str, Any], report: int, out: int, err: int) -> None:
    """Fork the command; say its number, and how it ended. In the command's own process, this returns when it has."""
    child = _fork()
    if child:
        os.write(report, b"%d %d\n" % (child, os.getpid()))
        _, status = os.waitpid(child, 0)
        os.write(report, b"%d\n" % os.waitstatus_to_exitcode(status))
        os._exit(0)
    os.close(report)
    os.setsid()
    for source, target in ((out, 1), (err, 2)):
        os.dup2(source, target)
        os.close(source)
    os.chdir(asked["folder"])
    os.environ.update(asked["env"])
    _be_python(asked["words"])


def _be_python(words: Sequence[str]) -> None:
    util.spawnv_passfds = _forked_fork_server
    if os.environ.get(PICTURES) == "none":
        importlib.import_module("bench.timeline").draw = lambda *picture: None  # type: ignore[attr-defined]
    try:
        if words[0] == "-m":
            sys.argv = list(words[1:])
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(words)
            sys.path[0] = str(Path(words[0]).absolute().parent)
            runpy.run_path(words[0], run_name="__main__")
        _leave(0)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            _leave(end.code or 0)
        raise
    finally:
        gc.unfreeze()  # what is torn down is torn down whole


def _leave(code: int) -> None:
    """End as the interpreter does, but leave its modules as they lie: to tidy them up copies the memory that is shared."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


_spawn = util.spawnv_passfds


def _forked_fork_server(path: bytes, words: Sequence[str], fds: Sequence[int]) -> int:
    """In place of a new interpreter for the fork server, this one forked, with the same files open; others as ever."""
    if not str(words[-1]).startswith(FORK_SERVER):
        return int(_spawn(path, words, fds))
    child = _fork()
    if child:
        return child
    atexit._clear()  # what it registers from here on is its own
    try:
        edges = [2, *sorted(fds), 1 << 16]
        for below, above in pairwise(edges):
            os.closerange(below + 1, above)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        exec(words[-1], {})
    finally:
        atexit._run_exitfuncs()
        os._exit(0)


def wait_for(what: Any, process: Process, timeout_s: float = 250.0) -> Any:
    """What `what()` returns as soon as it is something, or the process has ended."""
    deadline = time.monotonic() + timeout_s
    while not (found := what()) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    return found
