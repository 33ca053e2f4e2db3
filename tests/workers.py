"""Workers of pytest-xdist that import nothing: forked from one process that has imported all test modules once.

Each would import torch and three hundred modules, and rewrite their assertions, which takes 25 seconds of computing.
A worker is started as ever, by this file in the place of the interpreter: as a script it hands its files to the process
that is forked from, and waits. As a module it is that process.
"""

from __future__ import annotations

import os
import socket
import sys

FILES = (0, 1, 2)


def _wait(server: str, code: str) -> None:
    """Have `code` done by a worker that has this process's files, until it is gone."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(server)
        socket.send_fds(line, [code.encode()], FILES)
        with open(os.devnull, "r+b") as nothing:
            for file in FILES:
                os.dup2(nothing.fileno(), file)
        line.recv(1)


if __name__ == "__main__":
    _wait(sys.argv[1], sys.argv[-1])
    sys.exit()

import gc  # noqa: E402
import importlib  # noqa: E402
import select  # noqa: E402
import shlex  # noqa: E402
import signal  # noqa: E402
import tempfile  # noqa: E402
import threading  # noqa: E402
import warnings  # noqa: E402
from collections.abc import Callable, Iterator, Sequence  # noqa: E402
from contextlib import suppress  # noqa: E402
from pathlib import Path  # noqa: E402
from types import ModuleType  # noqa: E402
from typing import NoReturn  # noqa: E402

import pytest  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]


def modules(places: Sequence[str]) -> Iterator[str]:
    """The test modules in what pytest was asked to run, in its order."""
    for path in (Path(place.partition("::")[0]).resolve() for place in places):
        for file in sorted(path.rglob("test_*.py")) if path.is_dir() else [path]:
            if file.is_relative_to(ROOT):
                yield ".".join(file.relative_to(ROOT).with_suffix("").parts)


class Nursery:
    """The process that workers are forked from; it ends with its owner, and workers with theirs."""

    def __init__(self, names: Sequence[str], prepare: Callable[[], None]) -> None:
        """Import `names`, each when `prepare` was called, beside what goes on here."""
        self._folder = tempfile.TemporaryDirectory(prefix="workers-")
        path = f"{self._folder.name}/line"
        self.python = shlex.join([sys.executable, "-IS", __file__, path])
        """What starts a worker in the place of the interpreter."""
        owned, self._owned = os.pipe()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(64)
            self._pid = os.fork()
            if self._pid == 0:
                try:
                    os.close(self._owned)
                    _import(names, prepare)
                    _serve(listener, owned)
                finally:
                    os._exit(0)
        os.close(owned)

    def close(self) -> None:
        os.close(self._owned)
        os.kill(self._pid, signal.SIGKILL)  # it may still import
        os.waitpid(self._pid, 0)
        self._folder.cleanup()


def _import(names: Sequence[str], prepare: Callable[[], None]) -> None:
    gc.disable()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in names:
            prepare()
            with suppress(Exception, pytest.skip.Exception):  # the worker tries again, and says it
                importlib.import_module(name)
    gc.collect()
    gc.freeze()
    gc.enable()


def _serve(listener: socket.socket, owned: int) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while owned not in select.select([listener, owned], [], [])[0]:
        line, _ = listener.accept()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads that libraries have started
            child = os.fork()
        if child == 0:
            listener.close()
            os.close(owned)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _work(line)
        line.close()


def _work(line: socket.socket) -> NoReturn:
    """Be the interpreter that the other end was asked to be, with its files. What is tidied up at an exit is left: it is
    the owner's, too."""
    code, given, _, _ = socket.recv_fds(line, 10_000, len(FILES))
    for file, theirs in zip(FILES, given, strict=True):
        os.dup2(theirs, file)
        os.close(theirs)
    sys.stdin, sys.stdout, sys.stderr = (open(file, "r" if file == 0 else "w", closefd=False) for file in FILES)  # noqa: SIM115
    sys.argv = ["-c"]
    main = sys.modules["__main__"] = ModuleType("__main__")
    exec(code, main.__dict__)
    threading._shutdown()  # type: ignore[attr-defined]
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


# Python 3.11 keeps frames in blocks of 16 kB: a loop whose calls cross the end of one maps and unmaps the next with every
# call, which made the schedules of `tests/sim` take twice as long. A frame this large gets a block with room for all.
_work.__code__ = _work.__code__.replace(co_stacksize=70_000)
