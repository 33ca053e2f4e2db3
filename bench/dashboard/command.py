"""The verb `dashboard`: serves the page, or writes it to a file."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import uvicorn

from bench.base.exitcodes import Exit
from bench.base.usage import UsageError, usage
from bench.base.writing import write_text
from bench.dashboard import page, server
from bench.dashboard.board import whole
from bench.dashboard.process import address, listen
from bench.dashboard.verdicts import Judge, Stamp, unchanging
from ddp.process.orphans import at_parents_end


def export(path: Path, out: Path, judge: Judge | None = None) -> Exit:
    """Write the page over the runs in `path` to `out`; `judge` gives verdicts. Raises UsageError."""
    if not path.is_dir():
        raise UsageError(f"{path} is not a folder; give a run folder or a tree of them, such as runs/")
    pieces = whole(path, judge=judge)
    if not pieces:
        raise UsageError(f"{path}: there are no runs in it")
    with usage():
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, page.exported(pieces, path))
    print(out)
    return Exit.OK


def serve(path: Path, host: str, port: int, judge: Judge | None = None, stamp: Stamp = unchanging) -> Exit:
    """Serve the page over the runs in `path` until interrupted; `port` 0: any that is free; `judge` gives verdicts, and
    `stamp` what changes with the baselines. Raises UsageError."""
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is not a folder; give a run folder or a tree of them, such as runs/")
    try:
        listening = listen(host, port)
    except OSError as error:
        raise UsageError(f"cannot listen on {host}:{port}: {error}; choose another --port, or 0 for any") from None
    print(f"dashboard over {path}: {address(listening, host)}", flush=True)
    run(path, host, listening, judge=judge, stamp=stamp)
    return Exit.OK


def attend(
    path: Path, descriptor: int, judge: Judge | None = None, stamp: Stamp = unchanging, private: bool = False
) -> Exit:
    """Serve on an inherited socket until the parent process, at the other end of standard input, ends. `private`: then
    remove the folder, which the parent cannot do if it was killed."""
    at_parents_end(signal.SIGCONT)  # stopped, it would not notice
    os.nice(10)  # who trains goes first
    listening = socket.socket(fileno=descriptor)
    try:
        run(path, listening.getsockname()[0], listening, until=_closed, judge=judge, stamp=stamp)
    finally:
        if private:
            shutil.rmtree(path, ignore_errors=True)
    return Exit.OK


def run(
    path: Path,
    host: str,
    listening: socket.socket,
    until: Callable[[], None] | None = None,
    judge: Judge | None = None,
    stamp: Stamp = unchanging,
) -> None:
    """Serve until a signal comes, or `until` returns."""
    app = server.app(path, host, judge=judge, stamp=stamp)
    runner = uvicorn.Server(
        uvicorn.Config(app, log_level="critical", access_log=False, timeout_graceful_shutdown=2, lifespan="on")
    )
    app.state.closing = lambda: runner.should_exit
    if until is not None:

        def watch() -> None:
            until()
            runner.should_exit = True

        threading.Thread(target=watch, daemon=True).start()
    with suppress(KeyboardInterrupt):  # the signal that it ended for, once more
        runner.run(sockets=[listening])


def _closed() -> None:
    """Wait until the other end of standard input is closed."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
