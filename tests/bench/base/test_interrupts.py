"""Signals that interrupt no system call."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

from bench.base.interrupts import end_of


def test_a_signal_that_does_not_interrupt_the_wait_is_handled():
    """Python's own handler only sets a flag: a signal that comes before the system call, or in another thread, as here,
    leaves the call alone."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    before = signal.signal(signal.SIGUSR1, lambda number, frame: process.terminate())
    sender = threading.Timer(0.2, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGUSR1))
    sender.start()
    try:
        assert end_of(process) == -signal.SIGTERM
    finally:
        sender.join()
        process.kill()
        process.wait()
        signal.signal(signal.SIGUSR1, before)
