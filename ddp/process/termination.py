"""A flag for the process that it will be terminated soon. A signal handler sets it; the training loop reads it.

The loop then saves a checkpoint as soon as it can, and ends as if interrupted. Knows no signals."""

from __future__ import annotations

from threading import Event

_flag = Event()


def announce() -> None:
    """Set the flag."""
    _flag.set()


def announced() -> bool:
    """Return whether the flag is set."""
    return _flag.is_set()


def withdraw() -> None:
    """Clear the flag, as another command begins in this process."""
    _flag.clear()
