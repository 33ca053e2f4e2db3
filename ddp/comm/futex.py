"""Sleeps until a word in shared memory changes, by Linux's futex (futex(2)). Other systems sleep for a short time
instead."""

from __future__ import annotations

import ctypes
import errno
import platform
import sys
import time
from functools import lru_cache

_CALL = {"x86_64": 202, "aarch64": 98}.get(platform.machine()) if sys.platform == "linux" else None
_WAIT, _WAKE = 0, 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_SHORT_S = 50e-6
_SYSCALL = _LIBC.syscall
# (call, address, operation, value, timeout, unused, unused): declared types make a call twice as fast.
_ADDRESS, _INT = ctypes.c_void_p, ctypes.c_int
_SYSCALL.argtypes = [ctypes.c_long, _ADDRESS, _INT, ctypes.c_uint32, _ADDRESS, _ADDRESS, _INT]
_SYSCALL.restype = ctypes.c_long


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


@lru_cache(maxsize=64)
def _limit(timeout_s: float) -> tuple[_Timespec, int]:
    """Return a timeout as a C struct, and its address."""
    limit = _Timespec(int(timeout_s), int(timeout_s % 1 * 1e9))
    return limit, ctypes.addressof(limit)


def wait(address: int, value: int, timeout_s: float) -> bool:
    """Sleep while the 32-bit word at `address` has `value`, at most `timeout_s` seconds. Returns whether the timeout was
    reached."""
    if _CALL is None:
        time.sleep(min(_SHORT_S, timeout_s))
        return True
    limit = _limit(timeout_s)
    failed = _SYSCALL(_CALL, address, _WAIT, value & 0xFFFF_FFFF, limit[1], None, 0)
    return bool(failed) and ctypes.get_errno() == errno.ETIMEDOUT


def wake(address: int) -> None:
    """Wake all threads, of any process, that sleep on the word at `address`."""
    if _CALL is not None:
        _SYSCALL(_CALL, address, _WAKE, 2**31 - 1, None, None, 0)
