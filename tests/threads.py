"""Ranks as threads of one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def no_thread_left(*names: str) -> Iterator[None]:
    """Threads whose names begin with one of these, and that were not there before, have ended in five seconds."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 5
    while left := [t for t in set(threading.enumerate()) - before if t.name.startswith(names)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


def in_threads(world: int, act: Callable[[int], Any]) -> list[Any]:
    """What `act(rank)` returned on every rank, each in a thread of its own, or the exception that it raised."""
    results: list[Any] = [None] * world

    def rank(number: int) -> None:
        torch.set_num_threads(1)  # it is a thread's own
        try:
            results[number] = act(number)
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a rank hangs"
    return results


def sound(results: list[Any]) -> list[Any]:
    """The results, if no rank raised anything; else the first exception is raised."""
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results
