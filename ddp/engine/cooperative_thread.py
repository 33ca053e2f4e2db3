"""Cooperative threads: `resume` runs one until it pauses or ends, so only one runs at any time.

After a pause, each thread finds the random generators of torch, NumPy and Python as it left them. Does not know what
runs."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import numpy as np
import torch

from ddp.process.channel import PeerGone


def generators() -> Callable[[], None]:
    """Return a function that restores the present state of torch's, NumPy's and Python's random generators."""
    own, numbers, plain = torch.get_rng_state(), np.random.get_state(), random.getstate()

    def restore() -> None:
        torch.set_rng_state(own)
        np.random.set_state(numbers)
        random.setstate(plain)

    return restore


class CooperativeThread:
    """A thread that runs only between `resume` and its next `pause`."""

    def __init__(self) -> None:
        self.running = self.ended = self.dropped = False
        self._thread: threading.Thread | None = None
        self._until: Callable[[], bool] = lambda: True
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)

    @property
    def started(self) -> bool:
        """Whether the thread was created."""
        return self._thread is not None

    def begin(self, run: Callable[[], None], name: str) -> None:
        """Create the thread; `run` begins with the first `resume`."""
        self._thread = threading.Thread(target=self._serve, args=(run,), name=name, daemon=True)
        self._thread.start()

    def _serve(self, run: Callable[[], None]) -> None:
        self._go.acquire()
        try:
            if not self.dropped:
                run()
        except PeerGone:
            pass
        finally:
            self.ended = True
            self.leave()
            self._back.release()

    def leave(self) -> None:
        """Clean up at the end of the thread, in the thread. A hook for subclasses."""

    @property
    def ready(self) -> bool:
        """Whether the thread can continue."""
        return not self.ended and (self.dropped or self._until())

    def resume(self) -> None:
        """Run the thread until it pauses or ends."""
        self.running = True
        self._go.release()
        self._wait()

    def _wait(self) -> None:
        self._back.acquire()
        self.running = False

    def end(self) -> None:
        """End the thread by raising PeerGone where it has paused, and join it."""
        self.dropped = True
        if self.running:  # an interrupt arrived while this waited for the thread
            self._wait()
        if self._thread is None:
            return
        if not self.ended:
            self.resume()
        self._thread.join()

    def pause(self, until: Callable[[], bool]) -> None:
        """Let others run until `until()` holds. Called in the thread itself. Raises PeerGone if it was ended."""
        if self.dropped:
            raise PeerGone
        self._until = until
        restore = generators()
        self._back.release()
        self._go.acquire()
        restore()
        if self.dropped:
            raise PeerGone
