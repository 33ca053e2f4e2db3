"""Ctrl-C, SIGTERM and SIGHUP: each raises KeyboardInterrupt, wherever the command is, and is remembered.

SIGHUP, the end of a terminal, is left alone where somebody has it ignored, as `nohup` does.

With `BENCH_SAVE_S`, which schedulers' commands have, the first SIGTERM asks for a checkpoint, and is Ctrl-C so many seconds
later at the latest. Remembered, because an exception raised in the middle of an import or of a callback can be swallowed on
its way up.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from ddp.process import termination

SAVE, SUPERVISED = "BENCH_SAVE_S", "BENCH_SUPERVISED"
"""Variables: seconds that SIGTERM leaves for a checkpoint; another process passes on to this one what signals it gets."""
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ECHO_S = 0.5
"""A signal to all of a group comes again within so many seconds: from who supervises this command."""
_seen: list[int] = []
_acted: dict[int, float] = {}
"""When each signal last came, but for echoes."""


def _raise(number: int, frame: FrameType | None) -> None:
    if not _echo(number):
        _interrupt(number)


def _interrupt(number: int) -> NoReturn:
    _seen.append(number)
    raise KeyboardInterrupt


def _echo(number: int) -> bool:
    """Note a signal, or return True: it is the last one of its kind once more."""
    came = time.monotonic()
    if SUPERVISED in os.environ and came - _acted.get(number, -math.inf) < ECHO_S:
        return True
    _acted[number] = came
    return False


def _remember(number: int, frame: FrameType | None) -> None:
    if not _echo(number):
        _seen.append(number)


def _save_first(number: int, frame: FrameType | None) -> None:
    """Ask for a checkpoint at the first SIGTERM; what comes after it interrupts."""
    if _echo(number):
        return
    if number != signal.SIGTERM or termination.announced():
        _interrupt(number)
    termination.announce()
    later = threading.Timer(_patience_s(), os.kill, (os.getpid(), signal.SIGINT))
    later.daemon = True
    later.start()


def _patience_s() -> float:
    """Return the seconds that a checkpoint gets; 0: there is none to be made, or the variable makes no sense."""
    try:
        seconds = float(os.environ.get(SAVE, "0"))
    except ValueError:
        return 0.0
    return min(seconds, threading.TIMEOUT_MAX) if seconds > 0 else 0.0


@contextmanager
def listening() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP as Ctrl-C; SIGTERM perhaps as a word that comes before it. Forget them at the end.

    Main thread only."""
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
    """Tell whether there was one since `listening` began."""
    return bool(_seen)


def check() -> None:
    """Raise KeyboardInterrupt if one was swallowed."""
    if _seen:
        raise KeyboardInterrupt


@contextmanager
def deferred() -> Iterator[None]:
    """Defer an interrupt to the end, so that what is done inside is done whole. For a second or two at most. Nothing
    interrupts a thread other than the main one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = len(_seen)
    with _handled_by(_remember):
        yield
    if len(_seen) > before:
        raise KeyboardInterrupt


def leave(code: int, word: str = "") -> NoReturn:
    """Exit at once with a last word, without Python's own tidying up, in which a half-imported torch may crash. The folder
    that `multiprocessing` keeps its sockets in goes. Main thread only."""
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
