"""Ctrl-C, SIGTERM and SIGHUP: each raises KeyboardInterrupt, wherever the command is, and is remembered.

SIGHUP, the end of a terminal, is left alone if it is ignored, as under `nohup`.

With `BENCH_SAVE_S`, which commands of schedulers set, the first SIGTERM requests a checkpoint, and acts as Ctrl-C after
that many seconds at the latest. Signals are remembered because an exception in the middle of an import or of a callback
may be swallowed.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from ddp.process import termination

SAVE, SUPERVISED = "BENCH_SAVE_S", "BENCH_SUPERVISED"
"""Environment variables: seconds that SIGTERM leaves for a checkpoint; and whether another process forwards its signals
to this one."""
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ECHO_S = 0.5
"""Seconds within which a repeated signal is an echo: the group receives it, and the supervisor forwards it, too."""
LOOK_S = 0.5
"""Seconds within which a signal that interrupted no system call is handled."""
_seen: list[int] = []
_acted: dict[int, float] = {}
"""Signal -> when it last came, without echoes."""


def _raise(number: int, frame: FrameType | None) -> None:
    if not _echo(number):
        _interrupt(number)


def _interrupt(number: int) -> NoReturn:
    _seen.append(number)
    raise KeyboardInterrupt


def _echo(number: int) -> bool:
    """Return whether a signal is the echo of the last one of its kind; else note it."""
    came = time.monotonic()
    if SUPERVISED in os.environ and came - _acted.get(number, -math.inf) < ECHO_S:
        return True
    _acted[number] = came
    return False


def _remember(number: int, frame: FrameType | None) -> None:
    if not _echo(number):
        _seen.append(number)


def _save_first(number: int, frame: FrameType | None) -> None:
    """Request a checkpoint at the first SIGTERM; interrupt at any later signal."""
    if _echo(number):
        return
    if number != signal.SIGTERM or termination.announced():
        _interrupt(number)
    termination.announce()
    later = threading.Timer(_patience_s(), os.kill, (os.getpid(), signal.SIGINT))
    later.daemon = True
    later.start()


def _patience_s() -> float:
    """Return the seconds that a checkpoint gets; 0: no checkpoint is wanted, or the variable is invalid."""
    try:
        seconds = float(os.environ.get(SAVE, "0"))
    except ValueError:
        return 0.0
    return min(seconds, threading.TIMEOUT_MAX) if seconds > 0 else 0.0


@contextmanager
def listening() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP as Ctrl-C; with `BENCH_SAVE_S`, the first SIGTERM as a request for a checkpoint. Forget
    all signals at the end. Main thread only."""
    _forget()
    try:
        with _handled_by(_save_first if _patience_s() else _raise):
            yield
    finally:  # what comes next in this process was not interrupted
        _forget()


def _forget() -> None:
    _seen.clear()
    _acted.clear()
    termination.withdraw()


def interrupted() -> bool:
    """Return whether there was an interrupt since `listening` began."""
    return bool(_seen)


def check() -> None:
    """Raise KeyboardInterrupt if an interrupt was swallowed."""
    if _seen:
        raise KeyboardInterrupt


def end_of(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end of a process and return its exit code. The handler of a signal runs within `LOOK_S` seconds, also
    if the signal comes just before the system call that waits, which it then does not interrupt."""
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(LOOK_S)


@contextmanager
def deferred() -> Iterator[None]:
    """Defer interrupts to the end of the context, so that its body is not cut short; for a second or two at most.
    Without effect in threads other than the main one, which no signal interrupts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = len(_seen)
    with _handled_by(_remember):
        yield
    if len(_seen) > before:
        if signal.getsignal(signal.SIGINT) not in (_raise, _save_first, _remember):  # nobody listens, nobody forgets
            del _seen[before:]
        raise KeyboardInterrupt


@contextmanager
def shielded(limit_s: float) -> Iterator[None]:
    """Defer interrupts to the end of the context, and keep them from processes that its body starts: Ctrl-C in a terminal
    reaches the whole process group. Raise TimeoutError in the body after `limit_s` seconds. Main thread only."""

    def end(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"no end within {limit_s:g} s")

    with deferred(), held_back():
        handler, earlier = signal.signal(signal.SIGALRM, end), signal.setitimer(signal.ITIMER_REAL, limit_s)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, *earlier)


@contextmanager
def held_back() -> Iterator[None]:
    """Block the signals until the end of the context, in processes that its body starts until they call `receive`."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def receive() -> None:
    """Unblock the signals if a supervisor has started this process: they were blocked while nobody listened."""
    if SUPERVISED in os.environ:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def leave(code: int, word: str = "") -> NoReturn:
    """Exit at once after printing `word`, without Python's cleanup, in which a half-imported torch may crash. Removes
    the folder of `multiprocessing`'s sockets. Main thread only."""
    with _handled_by(_remember):
        with suppress(OSError):
            sys.stdout.flush()
            print(word, end="", file=sys.stderr, flush=True)
        if (util := sys.modules.get("multiprocessing.util")) is not None:
            with suppress(OSError):
                shutil.rmtree(util.get_temp_dir())
        os._exit(code)


@contextmanager
def _handled_by(handler: object) -> Iterator[None]:
    heard = [number for number in ENDING if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heard}  # type: ignore[arg-type]
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
