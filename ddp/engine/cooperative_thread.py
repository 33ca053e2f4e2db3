"""Threads that take turns: `resume` lets one run until it pauses or ends, so one runs at any time.

Each finds torch's, NumPy's and Python's generators as it left them. Knows nothing of what it runs.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import numpy as np
import torch

from ddp.process.channel import PeerGone


def generators() -> Callable[[], None]:
    """Return what puts torch's, NumPy's and Python's generators back to what they are now."""
    own, numbers, plain = torch.get_rng_state(), np.random.get_state(), random.getstate()

    def restore() -> None:
        torch.set_rng_state(own)
        np.random.set_state(numbers)
        random.setstate(plain)

    return restore


class CooperativeThread:
    """One such thread."""

    def __init__(self) -> None:
        self.running = self.ended = self.dropped = False
        self._thread: threading.Thread | None = None
        self._until: Callable[[], bool] = lambda: True
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)

    @property
    def started(self) -> bool:
        """Whether there is a thread."""
        return self._thread is not None

    def begin(self, run: Callable[[], None], name: str) -> None:
        """Make the thread; it begins with the first `resume`."""
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
        """Do what is to be done at the end of the thread, in it."""

    @property
    def ready(self) -> bool:
        """Whether it can go on."""
        return not self.ended and (self.dropped or self._until())

    def resume(self) -> None:
        """Let it run until it pauses, or ends."""
        self.running = True
        self._go.release()
        self._wait()

    def _wait(self) -> None:
        self._back.acquire()
        self.running = False

    def end(self) -> None:
        """Raise PeerGone where it has paused."""
        self.dropped = True
        if self.running:  # an interrupt came while it was waited for
            self._wait()
        if self._thread is None:
            return
        if not self.ended:
            self.resume()
        self._thread.join()

    def pause(self, until: Callable[[], bool]) -> None:
        """Let others run until the condition holds, in its own thread. Raises PeerGone if it was dropped."""
        if self.dropped:
            raise PeerGone
        self._until = until
        restore = generators()
        self._back.release()
        self._go.acquire()
        restore()
        if self.dropped:
            raise PeerGone
