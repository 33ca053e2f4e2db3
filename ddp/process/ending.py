"""The word that this process is soon to be ended: from a signal's handler to the loop that trains. One for a process.

A loop that hears it makes a checkpoint as soon as it can, and ends as an interrupted one. Knows no signals.
"""

from __future__ import annotations

from threading import Event

_soon = Event()


def announce() -> None:
    """Say that the end is near."""
    _soon.set()


def announced() -> bool:
    """Return whether somebody has said so."""
    return _soon.is_set()


def withdraw() -> None:
    """Take it back: another command begins in this process."""
    _soon.clear()
