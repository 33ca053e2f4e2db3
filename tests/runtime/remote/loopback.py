"""The key and the run of connections on loopback, and what goes on until one is lost."""

from __future__ import annotations

from collections.abc import Callable

KEY, RUN = b"k" * 32, b"r" * 16


def for_ever(act: Callable[[], object]) -> None:
    while True:
        act()
