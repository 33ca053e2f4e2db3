"""Restores, at the end of a run, the process-wide state that the run changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ddp.data.seeded import others, set_others


@contextmanager
def put_back(in_place: bool) -> Iterator[None]:
    """Restore process-wide state at the end of the block: the number of torch threads and, if `in_place`, the random
    generators."""
    threads = torch.get_num_threads()
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    before = others()
    try:
        with torch.random.fork_rng(devices=gpus, enabled=in_place):
            yield
    finally:
        torch.set_num_threads(threads)
        if in_place:
            set_others(before)
