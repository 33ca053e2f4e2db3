"""The promise that no thread is left that reads ahead."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from ddp.data.streaming import NAME


@pytest.fixture
def reading_threads() -> Callable[[], list[threading.Thread]]:
    """List the threads that read ahead and that the test started: those of tests before it may still be about."""
    before = set(threading.enumerate())
    return lambda: [thread for thread in threading.enumerate() if thread.name == NAME and thread not in before]


@pytest.fixture(autouse=True)
def no_thread_left(reading_threads: Callable[[], list[threading.Thread]]) -> Iterator[None]:
    yield
    assert not reading_threads()
