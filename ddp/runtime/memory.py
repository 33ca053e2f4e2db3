"""Tensors in files that processes of one host map: shared memory, where the folder lies in memory."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor


def shared(path: Path, dtype: torch.dtype, elements: int) -> Tensor:
    """The tensor [elements] in a file, made of zeros when it is not there yet. Raises OSError where there is no room."""
    size = elements * dtype.itemsize
    if size and hasattr(os, "posix_fallocate"):
        # Memory that is promised and not there would kill the process at the first touch.
        with path.open("ab") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                remedy = "give it more (docker: --shm-size), or leave TMPDIR and /dev/shm to where there is room"
                raise OSError(f"no room for {size / 1e6:.0f} MB of shared memory in {path.parent}: {remedy}") from error
    return torch.from_file(str(path), shared=True, size=elements, dtype=dtype)
