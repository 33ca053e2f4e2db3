"""Ctrl-C and SIGTERM: both raise KeyboardInterrupt, wherever the command is, and are remembered.

Remembered, because an exception raised in the middle of an import or of a callback can be swallowed on its way up.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

_seen: list[int] = []


def _raise(number: int, frame: FrameType | None) -> None:
    _seen.append(number)
    raise KeyboardInterrupt


def _remember(number: int, frame: FrameType | None) -> None:
    _seen.append(number)


@contextmanager
def listening() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C. Main thread only."""
    _seen.clear()
    with _handled_by(_raise):
        yield


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
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}  # type: ignore[arg-type]
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
