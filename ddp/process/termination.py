"""A flag, one for a process: it will be terminated soon. A signal's handler sets it, the loop that trains reads it.

The loop then makes a checkpoint as soon as it can, and ends as an interrupted one. Knows no signals.
"""

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
    """Clear the flag: another command begins in this process."""
    _flag.clear()
