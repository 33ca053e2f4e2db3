"""One thread for each replica. Torch releases the GIL inside its operations, so replicas compute in parallel.

Owns how a function runs on all replicas and how its errors are returned. Must not know what a function does. Results never
depend on the order: `parallel=False` runs one replica after the other, with bit-identical results.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from queue import SimpleQueue
from typing import Any, TypeVar

import torch

T = TypeVar("T")
Work = Callable[[], Any]
_Answer = tuple[int, int, Any, BaseException | None]
"""(index of the run, rank, value, error)."""


class ReplicaFailed(Exception):
    """Replica `rank` raised `error`."""

    def __init__(self, rank: int, error: BaseException) -> None:
        super().__init__(f"replica {rank} failed: {error}")
        self.rank, self.error = rank, error


class WorkerThreads:
    """`size` worker threads. They end on `close`, or when this object is garbage-collected."""

    def __init__(self, size: int, parallel: bool = True) -> None:
        self.size = size
        self._answers: SimpleQueue[_Answer] = SimpleQueue()
        self._boxes: list[SimpleQueue[tuple[int, Work] | None]] = []
        self._runs = 0
        self._threads: list[threading.Thread] = []
        own = max(1, (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1) // size)
        before = torch.get_num_threads()
        for rank in range(size if parallel else 0):
            box: SimpleQueue[tuple[int, Work] | None] = SimpleQueue()
            thread = threading.Thread(
                target=_serve, args=(rank, box, self._answers, own), name=f"replica-{rank}", daemon=True
            )
            thread.start()
            self._boxes.append(box)
            self._threads.append(thread)
        if parallel:
            for _ in range(size):
                self._answers.get()  # each thread has called set_num_threads, which also changes the default of the process
            torch.set_num_threads(before)
        self._end = weakref.finalize(self, _end, list(self._boxes))

    def run(self, work: Sequence[Callable[[], T]], here: Collection[int] = ()) -> list[T]:
        """Run `work[rank]` for every rank, in the caller's gradient mode and autocast. Return the results by rank. The
        ranks in `here` run on the calling thread. Waits for all, then raises the error of the lowest rank in a
        ReplicaFailed."""
        if not self._boxes:
            return [_result(rank, act) for rank, act in enumerate(work)]
        modes = _modes()
        self._runs += 1
        for rank, (box, act) in enumerate(zip(self._boxes, work, strict=True)):
            if rank not in here:
                box.put((self._runs, _within(modes, act)))
        answers = {rank: _answered(self._runs, rank, work[rank]) for rank in here}
        while len(answers) < len(self._boxes):
            answer = self._answers.get()
            if answer[0] == self._runs:  # other answers are of a run whose caller was interrupted
                answers[answer[1]] = answer
        for rank in range(self.size):
            error = answers[rank][3]
            if error is not None:
                raise ReplicaFailed(rank, error) from error
        return [answers[rank][2] for rank in range(self.size)]

    def close(self) -> None:
        """End the threads when they have finished their work."""
        self._end()
        for thread in self._threads:
            thread.join()


def _result(rank: int, work: Callable[[], T]) -> T:
    try:
        return work()
    except (Exception, SystemExit) as error:
        raise ReplicaFailed(rank, error) from error


def _answered(run: int, rank: int, work: Work) -> _Answer:
    try:
        return run, rank, work(), None
    except BaseException as error:
        return run, rank, None, error


def _serve(rank: int, box: SimpleQueue[tuple[int, Work] | None], answers: SimpleQueue[_Answer], threads: int) -> None:
    torch.set_num_threads(threads)
    answers.put((0, rank, None, None))
    while (entry := box.get()) is not None:
        run, work = entry
        answers.put(_answered(run, rank, work))
        del entry, work  # release what they refer to while waiting for the next entry


def _end(boxes: list[SimpleQueue[tuple[int, Work] | None]]) -> None:
    for box in boxes:
        box.put(None)


def _modes() -> tuple[bool, bool, list[tuple[str, torch.dtype]]]:
    """Return torch's thread-local state: gradient mode, inference mode, autocast by kind of device."""
    kinds = ("cpu", "cuda")
    cast = [(kind, torch.get_autocast_dtype(kind)) for kind in kinds if torch.is_autocast_enabled(kind)]
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), cast


def _within(modes: tuple[bool, bool, list[tuple[str, torch.dtype]]], work: Callable[[], T]) -> Callable[[], T]:
    grad, inference, cast = modes

    def run() -> T:
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(inference))
            stack.enter_context(torch.set_grad_enabled(grad))
            for kind, dtype in cast:
                stack.enter_context(torch.autocast(kind, dtype))
            return work()

    return run
