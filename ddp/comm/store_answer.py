"""Limits the time of calls to PyTorch's store, whose client waits for ever while the store's process is stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def answered(call: Callable[[], T], limit_s: float) -> T:
    """Return the result of `call`, or raise its error. Raise RuntimeError if it takes longer than `limit_s`; its thread
    then continues until the process ends."""
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=work, name="store", daemon=True).start()
    try:
        return future.result(limit_s)
    except TimeoutError:
        if future.done():  # the call's own TimeoutError
            raise
        raise RuntimeError(f"the store did not answer within {limit_s:g} s; is its process stopped?") from None
