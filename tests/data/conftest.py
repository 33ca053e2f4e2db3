"""The promise that no thread is left that reads ahead."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from ddp.data.streaming import NAME


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    before = threading.enumerate()
    yield
    assert not [thread for thread in threading.enumerate() if thread.name == NAME and thread not in before]
