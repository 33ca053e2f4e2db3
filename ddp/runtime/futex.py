"""Sleeping until a word in shared memory changes: Linux's futex, futex(2). Elsewhere a short sleep stands in for it."""

from __future__ import annotations

import ctypes
import errno
import platform
import sys
import time

_CALL = {"x86_64": 202, "aarch64": 98}.get(platform.machine()) if sys.platform == "linux" else None
_WAIT, _WAKE = 0, 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_SHORT_S = 50e-6


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


def wait(address: int, value: int, timeout_s: float) -> bool:
    """Sleep while the 32-bit word at `address` holds `value`, at most so long; returns whether that was how long it took."""
    if _CALL is None:
        time.sleep(min(_SHORT_S, timeout_s))
        return True
    limit = _Timespec(int(timeout_s), int(timeout_s % 1 * 1e9))
    failed = _LIBC.syscall(
        ctypes.c_long(_CALL),
        ctypes.c_void_p(address),
        ctypes.c_int(_WAIT),
        ctypes.c_uint32(value & 0xFFFF_FFFF),
        ctypes.byref(limit),
        None,
        ctypes.c_int(0),
    )
    return bool(failed) and ctypes.get_errno() == errno.ETIMEDOUT


def wake(address: int) -> None:
    """Wake all who sleep on the word at `address`, in whatever process."""
    if _CALL is not None:
        all_of_them = (ctypes.c_int(_WAKE), ctypes.c_int(2**31 - 1))
        _LIBC.syscall(ctypes.c_long(_CALL), ctypes.c_void_p(address), *all_of_them, None, None, ctypes.c_int(0))
