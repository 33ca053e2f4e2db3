"""When Python's garbage collector looks at what. It looks for cycles among all objects, and ours are many and have none."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def short_collections() -> Iterator[None]:
    """Keep the collector from what is there already: 300,000 objects take it 0.2 s, and all ranks wait for this process."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def no_collections() -> Iterator[None]:
    """Stop the collector where 100,000s of records are made and none is thrown away: it would look at all of them again and
    again, a fourth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
