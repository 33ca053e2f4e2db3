"""A background thread for collectives. Knows nothing of what they reduce."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import torch

T = TypeVar("T")


class Courier:
    """Runs jobs in the order in which they are submitted. After one fails, all later ones fail with the same error.

    The thread is a daemon: a process that exits during a collective does not wait for it.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._threads = torch.get_num_threads()
        threading.Thread(target=self._work, name="collectives", daemon=True).start()

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Queue a job. The future's `result` waits for it and raises its error."""
        future: Future[T] = Future()
        self._jobs.put((job, future))
        return future

    def stop(self) -> None:
        """End the thread after the jobs that are queued."""
        self._jobs.put(None)

    def _work(self) -> None:
        # A new thread begins with torch's defaults.
        torch.set_num_threads(self._threads)
        broken: Exception | None = None
        while (entry := self._jobs.get()) is not None:
            job, future = entry
            try:
                if broken is not None:
                    raise broken
                result = job()
            except Exception as error:
                broken = error
                future.set_exception(error)
            else:
                future.set_result(result)
            del entry, job, future  # release what they refer to while waiting for the next job
