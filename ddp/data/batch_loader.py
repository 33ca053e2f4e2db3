"""Defines `BatchLoader`: the batches of a rank, by position. Either all data is on the device, or a thread reads ahead.

Both give the same bits. Knows nothing of who grants positions, and why.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ddp.core.settings.loader import Loading
from ddp.data.augment import Augment
from ddp.data.epoch_order import EpochOrder
from ddp.data.gather import Gather
from ddp.data.memory_budget import depth, room
from ddp.data.resident import Resident
from ddp.data.streaming import Streaming

BatchLoader = Resident | Streaming


def refuse_samplewise(loading: Loading, source: Any) -> None:
    """Raise ValueError if the loader must be resident but the data cannot be: it gives samples one by one."""
    if loading.kind == "resident" and getattr(source, "nbytes", None) is None:
        raise ValueError(
            f"loader kind=resident, but {type(source).__name__} gives samples one by one, and may give others each time; "
            "give tensors, or leave it to kind=auto"
        )


def feed(
    source: Any,
    visits: EpochOrder,
    device: torch.device,
    loading: Loading,
    augment: Augment | None = None,
    deadline_s: float = 60.0,
) -> tuple[BatchLoader, str]:
    """Return the loader of a rank on `device`, and a note for readers of the results ("": nothing to note).

    `deadline_s`: seconds that a batch may take. Raise ValueError if the data does not support `loading`."""
    size: int | None = getattr(source, "nbytes", None)
    refuse_samplewise(loading, source)
    note = ""
    if size is not None and (loading.kind == "resident" or (loading.kind == "auto" and size <= room(loading, device))):
        try:
            return Resident(Gather(source.to(device), visits, augment, device, device)), note
        except (RuntimeError, MemoryError) as error:  # the CPU's allocator raises a plain RuntimeError
            known = isinstance(error, (MemoryError, torch.OutOfMemoryError))
            if not known and "allocate memory" not in str(error):
                raise
        if device.type == "cuda":
            torch.cuda.empty_cache()
        note = f"no memory on {device} for {size / 1e6:,.0f} MB of data: it is streamed"
    host = torch.device("cpu")
    gather = Gather(source.to(host), visits, augment, host, device)
    return Streaming(gather, partial(depth, loading, device), deadline_s), note
