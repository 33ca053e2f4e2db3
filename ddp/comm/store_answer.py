"""Bounds calls to PyTorch's store: while the process that has it is stopped, its client waits without an end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def answered(call: Callable[[], T], limit_s: float) -> T:
    """Return what `call` returns. Raise what it raises, or RuntimeError if it is late: a thread goes on with it then, until
    the process ends."""
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
        if future.done():  # its own
            raise
        raise RuntimeError(f"the store did not answer within {limit_s:g} s; is its process stopped?") from None
