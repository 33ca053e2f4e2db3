"""Ranks as processes of their own, for tests of what runs in them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from ddp.process import forkserver


def exit_codes(act: Callable[..., None], ranks: Sequence[tuple[Any, ...]], limit_s: float = 60.0) -> list[int | None]:
    """Of processes that run `act(*arguments)`, one for each entry of `ranks`; below 0 for one that was not done in time, and
    is ended."""
    processes = [forkserver.warm().Process(target=act, args=arguments) for arguments in ranks]
    for process in processes:
        process.start()
    until = time.monotonic() + limit_s
    for process in processes:
        process.join(max(until - time.monotonic(), 0.0))
        process.kill()  # as a rule it has ended
        process.join()
    return [process.exitcode for process in processes]
