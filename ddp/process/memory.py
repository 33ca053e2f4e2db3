"""Tensors in files that the processes of one host map: shared memory, if the folder is in memory."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from ddp.core.errors import OutOfResources
from ddp.process.resource_errors import enough, free


def shared(path: Path, dtype: torch.dtype, elements: int) -> Tensor:
    """Return the tensor [elements] in a file, which is created with zeros if missing. Raises OutOfResources if there is no
    space."""
    size = elements * dtype.itemsize
    if size and hasattr(os, "posix_fallocate"):
        # Allocate now: touching memory that is not there would kill the process.
        opened = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        with (
            enough(f"no {size / 1e6:,.1f} MB of shared memory can be had in {path}"),
            open(os.open(path, opened, 0o666), "r+b") as file,
        ):
            with suppress(OSError):  # in turn: where the file system cannot allocate, the C library writes zeros
                fcntl.flock(file, fcntl.LOCK_EX)
            try:
                if os.fstat(file.fileno()).st_size < size:
                    _allocate(file.fileno(), size)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                remedy = "give it more (docker: --shm-size; mount -o remount,size=...), or train on fewer ranks"
                raise OutOfResources(
                    f"no room for {size / 1e6:,.1f} MB of shared memory in {path}, {free(path)}: {remedy}"
                ) from error
    return torch.from_file(str(path), shared=True, size=elements, dtype=dtype)


def _allocate(descriptor: int, size: int) -> None:
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        os.ftruncate(descriptor, size)  # this file system cannot promise room
