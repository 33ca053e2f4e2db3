"""Root, held back by permissions as anybody is: else a file that nobody may read is read by tests that root runs."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

VERSION = 0x20080522  # of the interface: two words of 32 capabilities
OVERRIDE = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Word(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


@contextmanager
def held_back() -> Iterator[None]:
    """Inside, in this thread and those that it starts, permissions hold whoever asks."""
    if os.geteuid():
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, words = _Header(VERSION, 0), (_Word * 2)()
    _call(libc.capget, header, words)
    before = words[0].effective
    words[0].effective = before & ~OVERRIDE
    _call(libc.capset, header, words)
    try:
        yield
    finally:
        words[0].effective = before
        _call(libc.capset, header, words)


def _call(function: object, header: _Header, words: object) -> None:
    assert callable(function)
    if function(ctypes.byref(header), words):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
