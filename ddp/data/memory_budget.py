"""Measures the memory for data on a device, and decides how many batches a rank reads ahead."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import torch

from ddp.core.settings.loader import Loading

FIRST, LEAST, MOST = 4, 2, 32
"""Number of batches read ahead: before the size of a batch is known, the minimum and the maximum."""


def room(loading: Loading, device: torch.device) -> float:
    """Return the bytes that data may use on `device` now; infinite if memory cannot be measured."""
    if device.type == "cuda":
        # Blocks cached by torch's allocator count as free.
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return loading.vram_max_usage * (torch.cuda.mem_get_info(device)[0] + kept)
    return loading.memory_max_usage * free_host_bytes() if device.type == "cpu" else math.inf


def depth(loading: Loading, device: torch.device, batch_bytes: int) -> int:
    """Return the number of batches of `batch_bytes` to read ahead; `FIRST` if the size is not known yet (0)."""
    if loading.prefetch is not None:
        return loading.prefetch
    if not batch_bytes:
        return FIRST
    return int(min(max(room(loading, device) // batch_bytes, LEAST), MOST))


def size(batch: Any) -> int:
    """Return the bytes of the tensors in a batch of any structure."""
    if isinstance(batch, torch.Tensor):
        coo = batch.layout is torch.sparse_coo  # has no nbytes
        return batch._indices().nbytes + batch._values().nbytes if coo else batch.nbytes
    if isinstance(batch, Mapping):
        return sum(map(size, batch.values()))
    return sum(map(size, batch)) if isinstance(batch, (tuple, list)) else 0


_LIMITS = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
)
"""Files of cgroups v2 and v1: limit, usage, statistics, and the key of reclaimable memory in them."""


def free_host_bytes(root: Path = Path("/sys/fs/cgroup")) -> float:
    """Return the host memory available to this process: the free memory plus its own, because the data may be loaded
    already."""
    free: float = psutil.virtual_memory().available
    for limit, used, stat, given_back in _LIMITS:
        try:
            kept = dict(line.split() for line in (root / stat).read_text().splitlines())
            left = int((root / limit).read_text()) - int((root / used).read_text()) + int(kept[given_back])
        except (OSError, ValueError, KeyError):  # no such group, or no limit
            continue
        free = min(free, left)
    return max(free, 0.0) + float(psutil.Process().memory_info().rss)
