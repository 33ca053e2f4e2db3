"""Whether a data set fits the memory that is free, before it is made."""

from __future__ import annotations

import psutil


def afford(size: int, what: str) -> None:
    """ValueError where `what` takes more than is free now; `size` in bytes."""
    free = psutil.virtual_memory().available
    if size > free:
        raise ValueError(
            f"{what} takes {size / 2**30:.1f} GiB of memory, and {free / 2**30:.1f} GiB are free; make it smaller"
        )
