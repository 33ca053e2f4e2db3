"""What a run changes for all of this process, put back at its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ddp.data.seeded import others, set_others


@contextmanager
def put_back(in_place: bool) -> Iterator[None]:
    """Put back at the end what a run changes for all of this process: threads, and the random generators if in place."""
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
