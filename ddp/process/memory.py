"""Tensors in files that processes of one host map: shared memory, where the folder lies in memory."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import torch
from torch import Tensor

from ddp.core.errors import OutOfResources
from ddp.process.resource_errors import enough, free


def shared(path: Path, dtype: torch.dtype, elements: int) -> Tensor:
    """Return the tensor [elements] in a file, zeros where the file is not there yet. Raises OutOfResources where there is no
    room."""
    size = elements * dtype.itemsize
    if size and hasattr(os, "posix_fallocate"):
        # Memory that is promised and not there would kill the process at the first touch.
        with enough(f"no {size / 1e6:,.1f} MB of shared memory can be had in {path}"), path.open("ab") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                remedy = "give it more (docker: --shm-size; mount -o remount,size=...), or train on fewer ranks"
                raise OutOfResources(
                    f"no room for {size / 1e6:,.1f} MB of shared memory in {path}, {free(path)}: {remedy}"
                ) from error
    return torch.from_file(str(path), shared=True, size=elements, dtype=dtype)
